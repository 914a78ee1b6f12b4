// Package keys serves the keys of the API: making, listing, replacing and revoking them. Only admin keys may.
package keys
