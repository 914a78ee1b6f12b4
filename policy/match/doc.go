// Package match compares requests with the conditions of rules. A [Match] has conditions on method, path, query and header
// fields. [Compile] compiles it, and [Conditions.Fit] returns how certainly a [Request] meets the conditions, as servers interpret
// some requests differently. A [RequestRule] is a match with hosts and an action, and a [RepoRule] generates the request rules of a
// git repository.
//
// The size of matches, their regular expressions and the effort for one request are bounded.
package match
