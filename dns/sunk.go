package dns

import (
	"net/netip"
	"sync"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// sinkGrace is how long connections to the sink are attributed to the name that was answered with it.
const sinkGrace = 5 * time.Second

// sinkTracker tracks the name that was last answered to a box with the sink. The zero value is ready to use.
type sinkTracker struct {
	mu      sync.Mutex
	name    name.Name
	at      time.Time
	otherAt time.Time // when the box last received it for another name
}

// recordName records that the box received the sink for a name.
func (s *sinkTracker) recordName(n name.Name, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n != s.name {
		s.name, s.otherAt = n, s.at
	}
	s.at = now
}

// onlyName returns the name, or nil if a connection may also be for another name.
func (s *sinkTracker) onlyName(now time.Time) []name.Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name.IsZero() || now.Sub(s.at) > sinkGrace || now.Sub(s.otherAt) <= sinkGrace {
		return nil
	}
	return []name.Name{s.name}
}

// sinkNames returns the name that was answered to a box with the sink within sinkGrace, if there is only one.
func (s *Server) sinkNames(box policy.BoxID, now time.Time) []name.Name {
	if v, ok := s.usages.known.Load(box); ok {
		return v.(*usage).sinkTracker.onlyName(now)
	}
	return nil
}

func (s *Server) isSink(a netip.Addr) bool {
	return a.IsValid() && (a.Unmap() == s.sinkV4 || a.Unmap() == s.sinkV6)
}
