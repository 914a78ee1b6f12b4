// Package signin parses the visitors' input for signing in to a public URL: the form of the page, and the gateway's
// parameters in the query. It also removes those parameters, which applications must not see, and checks the path to return
// to. Pure: no clock, no state.
package signin
