package scrub

import "slices"

// Supersede says that next is what is looked for from now on: texts in which s is looked for, and which have not come to
// their end, are searched for next as well. s may be nil, and is then forgotten. Safe for concurrent use.
func (s *Set) Supersede(next *Set) {
	if s != nil && next != nil && s != next {
		s.next.Store(next)
	}
}

// latest returns the set that supersedes all before it: s itself if none does.
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

// with returns a set that finds what either finds. What supersedes s supersedes it as well.
func (s *Set) with(other *Set) *Set {
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

// now returns what is looked for in the next part of the text: the stream's own set, and the latest.
func (s *Stream) now() *Set {
	if latest := s.own.latest(); latest != s.latest {
		s.set, s.latest = s.own.with(latest), latest
	}
	return s.set
}
