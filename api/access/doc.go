// Package access decides who may call the API: those with a valid key, for as long as it is valid, and never a web page of
// another site.
package access
