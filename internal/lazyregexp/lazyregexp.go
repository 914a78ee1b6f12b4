// Package lazyregexp compiles regular expressions when they are first used. The patterns of the API and the configuration repeat
// classes hundreds of times, so that they take megabytes together, which every collection of garbage would visit; most
// gateways never use most of them.
package lazyregexp

import (
	"regexp"
	"sync"
)

// Regexp is a regular expression. Safe for concurrent use.
type Regexp struct {
	compiled func() *regexp.Regexp
}

// New returns a regular expression. If it is invalid, its first use panics.
func New(expr string) *Regexp {
	return &Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// MatchString reports whether s contains a match.
func (r *Regexp) MatchString(s string) bool { return r.compiled().MatchString(s) }

// FindStringSubmatch returns the leftmost match in s and the matches of its groups, or nil without a match.
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }

// String returns the text of the expression.
func (r *Regexp) String() string { return r.compiled().String() }
