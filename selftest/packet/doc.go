// Package packet writes packets byte by byte, wrong ones included, which no socket would send, and reads the headers of those
// that are seen.
package packet
