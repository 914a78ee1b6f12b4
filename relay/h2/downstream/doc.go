// Package downstream serves HTTP/2 clients (RFC 9113, RFC 8441). One goroutine reads the frames of a connection, another
// writes them in batches while there are frames to write. A request is served by a goroutine, which serves further ones after
// it, or begun by the goroutine that reads (Config.Start) and continued by the goroutine that ends its wait. A request begins
// with as much of its body as has arrived with its head. The package refuses requests that break the protocol, each with
// one call of Config.Refused. Handlers judge all others.
//
// Responses do not use a compression table: clients are near, and a table costs more than the bytes that it saves.
package downstream
