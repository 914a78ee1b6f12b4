// Package access authenticates and authorizes the callers of the API. It admits requests with a valid key, for as long as
// the key is valid, and never requests from a web page of another site.
package access
