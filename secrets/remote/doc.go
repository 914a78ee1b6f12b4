// Package remote is what the sources that are asked over the network have in common: [Source], and [Client], which sends
// their requests. Rooms beside this one implement the sources; the package above reads, caches and refreshes them.
//
// A request goes to an endpoint from the operator's configuration and nowhere else: redirects are not followed, and TLS
// is always verified. The answer is bounded in size and time, and what it says about a failure is only shown with the
// secrets of the request masked.
package remote
