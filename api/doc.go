// Package api is the admin API of the gateway: the REST dialect of the Upstash Box SDK (npm @upstash/box) and, on the
// same tree, what the gateway adds to it.
//
// [New] makes an http.Handler over a [Host], which owns the boxes; [API.Server] wraps it with the timeouts it needs.
// The package decodes strictly (an unknown, duplicate or mistyped field is answered with 422 and a JSON pointer, never
// dropped), checks the key, the Host and the Origin of every request, and maps the errors of the Host to statuses in
// one place. It keeps nothing but the latest runs and log lines of each box, in memory and bounded.
//
// [Client] is the small client that the command line uses.
package api
