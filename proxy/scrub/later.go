package scrub

import "slices"

// Supersede makes next the set to search for from now on: texts being searched for s that have not ended are searched
// for next as well. s may be nil, which has no effect. Safe for concurrent use.
func (s *Set) Supersede(next *Set) {
	if s != nil && next != nil && s != next {
		s.next.Store(next)
	}
}

// latest returns the set that supersedes all before it: s itself if it was not superseded.
func (s *Set) latest() *Set {
	for s != nil {
		next := s.next.Load()
		if next == nil {
			break
		}
		s = next
	}
	return s
}

// union returns a set that finds the secrets of both. The sets that supersede s supersede it as well.
func (s *Set) union(other *Set) *Set {
	if s == other {
		return s
	}
	both := &Set{patterns: slices.Concat(s.patterns, other.patterns)}
	for c := range both.starts {
		both.starts[c] = slices.Concat(s.starts[c], other.starts[c])
	}
	for i := range both.pairs {
		both.pairs[i] = s.pairs[i] | other.pairs[i]
	}
	return both
}

// currentSet returns the set for the next chunk of the text: the stream's own set combined with the latest.
func (s *Stream) currentSet() *Set {
	if latest := s.own.latest(); latest != s.latest {
		s.set, s.latest = s.own.union(latest), latest
	}
	return s.set
}
