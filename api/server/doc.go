// Package server serves the admin API over HTTP. [New] combines the endpoints of all API packages, backed by the
// [Services], behind the check of API keys. [API.Server] adds the timeouts that the API needs.
//
// An endpoint is a row in the Routes of its package. A new package of endpoints is added to [API.packages].
package server
