// Package packet writes packets byte by byte, including malformed ones that no socket would send, and reads the headers
// of received packets.
package packet
