// Package server serves the admin API over HTTP. [New] puts together the endpoints of all packages of the API, answered by the [Services], behind the check of
// who calls; [API.Server] adds the timeouts that the API needs.
//
// An endpoint is a row in the Routes of the package that it belongs to; a new package of endpoints is added to
// [API.packages].
package server
