package http2

import (
	"testing"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/proxy/exchange"
	"boxgate/proxy/live"
	"boxgate/proxy/usage"
)

type recorder struct{}

func (recorder) Record(audit.Event) {}

// TestStreamOfAPanicIsNotUsedAgain: an upload may go on for a moment after the handler has panicked.
func TestStreamOfAPanicIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	s := &exchange.Session{Usage: &usage.Box{}, Box: &policy.Box{}, Live: &live.Conn{}, Core: &exchange.Core{Log: zap.NewNop(), Audit: recorder{}}}
	st := &stream{progress: progress{s: s, c: &conn{s: s, flights: map[*stream]struct{}{}}}}
	st.x.Begin(s)
	func() {
		defer func() { _ = recover() }() // there is no client to reset
		defer st.finishRequest()
		panic("a fault")
	}()
	if st.recycle(); st.s != s || !st.shared {
		t.Error("another request may get the stream")
	}
}
