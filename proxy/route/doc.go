// Package route asks the policy how connections and requests may pass, and gathers the evidence that takes time: the
// addresses of hosts with rules, and the hosts of an address.
package route
