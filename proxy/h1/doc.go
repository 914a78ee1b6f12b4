// Package h1 parses HTTP/1.1 messages (RFC 9112) strictly and in place: a head into slices of the buffer it came in, a
// body into the slices that carry content.
//
// What could be read in two ways is refused, never repaired: conflicting or repeated framing, bare LF or CR, folded
// lines, white space before a colon, control bytes, a missing or repeated Host. Whatever [Request.Parse] accepts, other
// parsers read as the same method, target, fields and body length; a differential fuzz test holds it to that.
//
// The package reads and writes no socket but through the io.Reader given to a [Reader].
package h1
