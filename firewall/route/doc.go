// Package route makes the host a router for boxes: it holds the routing rules that let through only what the table has
// judged, the routes of the transparent proxy and of the pools, the gateway's addresses, and forwarding.
package route
