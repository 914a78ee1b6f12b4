package secrets

import (
	"maps"
	"slices"
	"time"
)

// Status is the state of one secret, without its value.
type Status struct {
	Name   string
	Source string    // such as "file /etc/boxgate/openai.key"
	Valid  bool      // there is a value that may be used, or the next use reads it
	Read   time.Time // when the source was asked for it; zero: it never gave one
	// Expires is when the value may no longer be used by what the source said of it; zero: it said nothing, or Stale.
	Expires time.Time
	// Stale says that its time has passed without a use: the source is read at the next one.
	Stale bool
	Err   error // why the last refresh failed; nil if it did not
}

// Status returns the state of every secret, by name.
func (s *Secrets) Status() []Status {
	if s == nil {
		return nil
	}
	var out []Status
	for _, name := range slices.Sorted(maps.Keys(s.entries)) {
		out = append(out, s.entries[name].status())
	}
	return out
}

func (e *entry) status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := Status{Name: e.name, Source: e.source.String(), Valid: e.valid(e.owner.now()), Read: e.read.wall, Err: e.err}
	st.Stale = !st.Valid && e.err == nil && !e.read.wall.IsZero()
	if st.Valid = st.Valid || st.Stale; !st.Stale {
		st.Expires = e.ends
	}
	return st
}
