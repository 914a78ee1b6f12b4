// Package route makes the host a router for boxes: it owns the routing rules that pass only packets judged by the table,
// the routes of the transparent proxy and of the pools, the gateway's addresses, and forwarding.
package route
