// Package local connects the engine of public URLs to http.Handlers in this process.
//
// A connection is a pair of sockets: the engine relays a request to one end as it does to a port of a box, and net/http serves the
// other end. So a handler of the gateway itself is behind the same checks, limits and cuts as boxes, over every version of
// HTTP, and no port of the host leads to it.
package local
