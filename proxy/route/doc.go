// Package route asks the policy for the routes of connections and requests, and gathers the evidence that takes time: the
// addresses of hosts with rules, and the hosts of an address.
package route
