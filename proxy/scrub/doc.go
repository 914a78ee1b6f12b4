// Package scrub finds secrets in what a server answers and masks them with asterisks, byte for byte, so that every length
// stays what it was.
//
// [New] compiles secrets into a [Set]. [Set.Mask] masks a complete text such as a header value; a [Stream] masks a body as
// it arrives and holds back only a tail that could be the beginning of a secret. [Messages] and [Frames] do so for bodies
// that consist of gRPC messages and of WebSocket frames. [NewReader] and [NewWriter] undo and redo a content coding.
//
// A secret is found as it is, in base64 (at each of the three alignments, so inside a longer encoded text too, in the
// standard and the URL alphabet) and in hexadecimal; and each byte of these forms may be written literally or escaped, in
// any mixture: %41, \u0041 as in JSON, \x41, &#65; and the short escapes.
//
// The package is pure: bytes in, bytes out.
package scrub
