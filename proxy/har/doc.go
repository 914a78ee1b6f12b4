// Package har records the HTTP requests of one box as the box sends them, with their responses as the box gets them, and writes
// them as an HTTP archive (HAR 1.2, http://www.softwareishard.com/blog/har-12-spec/).
//
// A [Capture] is attached to the usage of a box while a caller of the API reads it. An [Entry] is filled by the goroutines of one
// exchange; it never blocks or fails the exchange. A [Writer] reads finished entries. Secrets that the gateway sends for the box are
// not in an entry: requests are recorded before header rules apply, and every text is masked with all secrets sent since.
package har
