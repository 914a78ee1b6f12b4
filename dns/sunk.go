package dns

import (
	"net/netip"
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// sunkGrace is how long connections to the sink are attributed to the name for which the box received it.
const sunkGrace = 5 * time.Second

// sunk tracks the name for which a box last received the sink. The zero value is ready to use.
type sunk struct {
	mu    sync.Mutex
	name  name.Name
	at    time.Time
	other time.Time // when the box last received it for another name
}

// note records that the box received the sink for a name.
func (s *sunk) note(n name.Name, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n != s.name {
		s.name, s.other = n, s.at
	}
	s.at = now
}

// only returns the name, or nil if a connection may also be for another name.
func (s *sunk) only(now time.Time) []name.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name.IsZero() || now.Sub(s.at) > sunkGrace || now.Sub(s.other) <= sunkGrace {
		return nil
	}
	return []name.Name{s.name}
}

// sunkNames returns the name for which a box received the sink within sunkGrace, if there is only one.
func (s *Server) sunkNames(box policy.BoxID, now time.Time) []name.Name {
	if v, ok := s.usages.known.Load(box); ok {
		return v.(*usage).sunk.only(now)
	}
	return nil
}

func (s *Server) isSink(a netip.Addr) bool {
	return a.IsValid() && (a.Unmap() == s.sinkV4 || a.Unmap() == s.sinkV6)
}
