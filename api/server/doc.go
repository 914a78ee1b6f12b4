// Package server serves the admin API over HTTP. [New] puts the endpoints of all rooms over the [Services], behind the check of
// who calls; [API.Server] adds the timeouts that the API needs.
//
// An endpoint is a row in the Routes of the package that it belongs to; a new package of endpoints is added to the rooms
// of this one.
package server
