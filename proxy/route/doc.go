// Package route asks the policy how connections and requests may pass, and gathers the evidence that takes time: where hosts with
// rules are, and whose an address is.
package route
