// Package exchange holds what is the same for a request of any version of HTTP: the judgement, the values that are set, what is masked
// in the response, and the one event that tells of it.
package exchange
