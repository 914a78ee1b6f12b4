// Package match compares requests with what rules say about them. A [Match] has conditions on method, path, query and header
// fields, and [Compile] makes them ready to compare: [Conditions.Fit] is how surely a [Request] meets them, because servers
// read some requests in different ways. A [RequestRule] is a match with hosts and a verdict, and a [RepoRule] stands for the
// request rules of a git repository.
//
// Everything is bounded: the size of matches, the regular expressions in them, and the effort that one request may cost.
package match
