// Package keys serves the API keys: making, listing, replacing and revoking them. Only admin keys may use it.
package keys
