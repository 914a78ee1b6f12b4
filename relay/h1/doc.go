// Package h1 parses HTTP/1.1 messages (RFC 9112) strictly and in place: heads and bodies are returned as slices of the
// buffer they arrived in.
//
// Ambiguous input is refused, never repaired: conflicting or repeated framing, bare LF or CR, folded lines, white space
// before a colon, control bytes, a missing or repeated Host. Other parsers read whatever [Request.Parse] accepts as the
// same method, target, fields and body length; a differential fuzz test checks this. Responses may be looser where RFC 9112
// leaves one reading; [Response] contains their strict form.
//
// The package does no I/O except through the io.Reader passed to a [Reader].
package h1
