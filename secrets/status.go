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
	Valid  bool      // there is a usable value, or the next use reads it
	Read   time.Time // when the source was last read for it; zero: never successfully
	// Expires is when the value expires according to its source; zero: unknown, or Stale.
	Expires time.Time
	// Stale is set if the value expired without a use since: the next use reads the source.
	Stale bool
	Err   error // of the last refresh; nil if it succeeded
}

// Status returns the state of every secret, sorted by name.
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
	st := Status{Name: e.name, Source: e.source.String(), Valid: e.valid(e.owner.now()), Read: e.readAt.wall, Err: e.err}
	st.Stale = !st.Valid && e.err == nil && !e.readAt.wall.IsZero()
	if st.Valid = st.Valid || st.Stale; !st.Stale {
		st.Expires = e.sourceExpiry
	}
	return st
}
