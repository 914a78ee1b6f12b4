// Package scrub finds secrets in server responses and masks them with asterisks, byte for byte, so that no length
// changes.
//
// [New] compiles secrets into a [Set]. [Set.Mask] masks a complete text such as a header value; a [Stream] masks a body
// as it arrives and buffers only a tail that could be the beginning of a secret. [Messages] and [Frames] do the same
// for bodies of gRPC messages and of WebSocket frames. [Copy] decodes and encodes content codings.
//
// A secret is found literally, in base64 (at all three alignments, so also inside a longer encoded text, in the
// standard and URL alphabets) and in hexadecimal. Each byte of these forms may be written literally or escaped, in any
// mixture: %41, \u0041 as in JSON, \x41, &#65; and the short escapes.
//
// The package is pure: bytes in, bytes out.
package scrub
