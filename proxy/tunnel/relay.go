package tunnel

import (
	"context"
	"sync/atomic"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy"
	"boxgate/proxy/recovery"
	"boxgate/relay"
)

// Relay copies bytes between two ends until both directions have ended, or one has and the other stays silent. When it
// returns, neither end is in use.
func (p *Pool) Relay(client, server relay.End, box policy.BoxID) error {
	t := relay.Tunnel{
		Client: client, Server: server, Kill: socket.Reset,
		Half: func() func() bool {
			return time.AfterFunc(relay.Rest, func() { socket.Abort(client.Conn, server.Conn) }).Stop
		},
		Panicked: func(v any) { recovery.Log(p.log, "panic in an exchange", box, v) },
	}
	idle := p.WatchIdle(t.Abort, client.Read, server.Read)
	defer idle.Stop()
	var lost atomic.Bool
	defer p.WatchLost(server.Conn, func() { lost.Store(true); t.Abort() })()
	if err := t.Run(context.Background()); !lost.Load() {
		return err
	}
	return ErrLost
}
