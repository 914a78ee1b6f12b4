// Package remote is the common part of the sources that are fetched over the network: [Source], and [Client], which
// sends their requests. The sibling packages implement the sources; the parent package reads, caches and refreshes
// them.
//
// A request goes only to an endpoint in the operator's configuration: redirects are not followed, and TLS is always
// verified. The answer is bounded in size and time, and text about a failure is shown only with the secrets of the
// request masked.
package remote
