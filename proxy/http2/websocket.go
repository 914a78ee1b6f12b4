package http2

import (
	"net/http"
	"slices"
	"sync/atomic"

	"golang.org/x/net/http2/hpack"

	"boxgate/proxy/origin"
	"boxgate/proxy/recovery"
	"boxgate/proxy/tunnel"
	"boxgate/relay"
)

// serveWebSocket forwards an extended CONNECT (RFC 8441) to the upstream as an HTTP/1.1 upgrade, which every WebSocket
// server supports, and then relays bytes both ways between the client and that upstream.
func (st *stream) serveWebSocket() {
	up, err := st.s.Core.Origins.HTTP1(st.ctx, st.s.Origin, st.decision.Target(st.s))
	if err != nil {
		st.refuseUpstream(err)
		return
	}
	d := &downgrade{}
	d.begin(st, up)
	defer d.finishUpload()
	if err := d.head(true); err != nil {
		st.refuseUpstream(err)
		return
	}
	_ = d.Forward(&d.Exchange, &d.out, d, true)
}

// Tunnel implements [relay.Side].
func (d *downgrade) Tunnel(n int) error {
	st := d.st
	st.x.Event.Status = http.StatusOK
	fields := slices.DeleteFunc(d.fields(&d.Res), func(f hpack.HeaderField) bool { return f.Name == "sec-websocket-accept" })
	st.answer(http.StatusOK, fields)
	d.up.In.Take(n)
	err := d.tunnel()
	if err != nil {
		st.abort(err) // not a graceful close
	}
	return err
}

// tunnel passes bytes both ways between the client and the upgraded connection.
func (d *downgrade) tunnel() error {
	st, up := d.st, d.up
	st.shared = true
	toServer, end := st.s.Searched(st.ctx, &st.decision, upstreamWriter{up})
	defer end()
	var in atomic.Int64
	var lost atomic.Bool
	defer st.s.Core.Tunnels.WatchLost(up.NetConn, func() { lost.Store(true); up.Abort() })()
	idle := st.s.Core.Tunnels.WatchIdle(up.Abort, &st.uploaded, &in)
	defer idle.Stop()
	if err := st.w.Flush(); err != nil { // the head
		return err
	}
	t := relay.StreamTunnel{
		Client: st.client, To: st.decision.Masking(relay.Through{Writer: &st.w, Flush: st.w.Flush}), End: st.w.endResponse, Read: &st.uploaded, Abort: up.Abort,
		Server:   relay.End{Conn: up.NetConn, To: toServer, In: &up.In, Read: &in},
		Panicked: func(v any) { recovery.Log(st.s.Core.Log, "panic in an exchange", st.s.Box.ID, v) },
	}
	err := st.noted(t.Run())
	st.x.Event.BytesIn = in.Load()
	if lost.Load() {
		return tunnel.ErrLost
	}
	return err
}

// upstreamWriter writes to the server as an [io.Writer].
type upstreamWriter struct{ up *origin.Conn }

func (u upstreamWriter) Write(b []byte) (int, error) {
	if err := u.up.Write(b); err != nil {
		return 0, err
	}
	return len(b), nil
}
