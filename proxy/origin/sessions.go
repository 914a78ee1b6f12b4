package origin

import "crypto/tls"

const (
	maxSessions = 128      // TLS sessions kept for a box
	maxSession  = 12 << 10 // bytes of one: the ticket, which may have any length, and the server's certificates; typically about 8,000
)

// sessions stores the TLS sessions of a box, except long ones. Servers with long ones get a full handshake each time.
type sessions struct {
	tls.ClientSessionCache
}

func newSessions() *sessions { return &sessions{tls.NewLRUClientSessionCache(maxSessions)} }

// Put implements [tls.ClientSessionCache].
func (s *sessions) Put(key string, of *tls.ClientSessionState) {
	if of == nil || sizeOf(of) <= maxSession {
		s.ClientSessionCache.Put(key, of)
	}
}

// sizeOf returns the length of a session in bytes, or more than maxSession if it cannot be determined.
func sizeOf(of *tls.ClientSessionState) int {
	ticket, state, err := of.ResumptionState()
	if err != nil || state == nil || len(ticket) > maxSession {
		return maxSession + 1
	}
	rest, err := state.Bytes()
	if err != nil {
		return maxSession + 1
	}
	return len(ticket) + len(rest)
}
