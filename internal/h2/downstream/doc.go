// Package downstream serves HTTP/2 clients (RFC 9113, RFC 8441): one goroutine reads the frames of a connection, one
// writes them in batches while there is anything to write. A request is served by a goroutine, which serves another one
// after it, or begun by the goroutine that reads (Config.Start) and left to whoever hears of what it waits for. A request begins with as much of its body as has arrived with it. Requests that break the protocol are refused
// here, each with one call of Config.Refused; what a request asks for is its handler's to judge.
//
// Responses do not use a compression table: clients are near, and a table costs more than the bytes that it saves.
package downstream
