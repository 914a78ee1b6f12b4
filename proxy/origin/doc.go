// Package origin makes and pools connections to origin servers: to addresses that the current policy allows, over TLS with
// verified servers, in a separate pool per box.
package origin
