// Package pool keeps connections to servers for further requests. A connection carries one request at a time (HTTP/1.1), or several
// (HTTP/2, [Shared]). Every connection has a [Place] from before it is dialled until it is closed.
//
// A [Pool] belongs to whoever must share no connections with others: egress has one for each box, keyed by host; public URLs have one
// for each version of HTTP, keyed by URL and port. Callers dial, and their connections judge who may use them.
package pool
