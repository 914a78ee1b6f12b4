package ingress

import (
	"context"
	"net"
	"time"

	"go.uber.org/zap"

	"boxgate/relay/h2/downstream"
)

// session is one HTTP/2 connection of a client.
type session struct {
	g       *core
	visitor *visitor
	conn    net.Conn
	held    *held
}

// run serves the connection until it ends.
func (s *session) run() {
	drain, release := s.held.drained(s.g.draining)
	defer release()
	downstream.Serve(context.Background(), s.conn, downstream.Config{
		Start: s.start, Handler: s.serve, Refused: s.refused, Panicked: s.panicked, Memory: s.g.heads, Idle: s.g.IdleTimeout, Drain: drain,
	})
}

// refused records a refusal by the HTTP/2 connection.
func (s *session) refused(r downstream.Refusal) { s.g.refusedUnread(time.Now(), "HTTP/2: "+r.Why) }

func (s *session) panicked(any) {
	s.g.Log.Error("panic in an HTTP/2 connection to a public URL", zap.Stack("stack"))
}
