// Package signin reads what visitors of a public URL send to sign in: the form of the page, and the gateway's parameters
// in the query of an address. It also removes those parameters, which an application never sees, and judges the paths to which a sign-in
// returns. Pure: no clock, no state.
package signin
