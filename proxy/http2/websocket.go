package http2

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"

	"boxgate/internal/socket"
	"boxgate/proxy/contain"
	"boxgate/proxy/origin"
	"boxgate/proxy/tunnel"
	"boxgate/relay"
)

// serveWebSocket forwards an extended CONNECT (RFC 8441) to the upstream as an HTTP/1.1 upgrade, which every WebSocket
// server supports, and then relays bytes both ways between the client and that upstream.
func (st *stream) serveWebSocket() {
	up, err := st.s.Core.Origins.HTTP1(st.ctx, st.s.Origin, st.ruling.Target(st.s))
	if err != nil {
		st.refuseUpstream(err)
		return
	}
	d := &downgrade{}
	d.begin(st, up)
	defer d.end()
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

// tunnel relays the bytes of the stream and of the upgraded connection until the server has ended, or the client has
// and the server stays silent.
func (d *downgrade) tunnel() error {
	_ = d.up.NetConn.SetReadDeadline(time.Time{})
	d.up.In.Source = d.up.NetConn
	var ended atomic.Bool
	d.st.shared = true
	toServer, end := d.st.s.Searched(d.st.ctx, &d.st.ruling, upstreamWriter{d.up})
	defer end()
	go func() { // ends at the latest when the handler returns and the stream ends
		defer contain.Panic(d.st.s.Core.Log, d.st.s.Box.ID, d.up.Abort)
		if err := d.st.noted(d.fromClient(toServer)); err != nil {
			d.up.Abort()
			return
		}
		ended.Store(true)
		socket.CloseWrite(d.up.NetConn)
		time.AfterFunc(relay.Rest, d.up.Abort)
	}()
	var in atomic.Int64
	var lost atomic.Bool
	defer d.st.s.Core.Tunnels.WatchLost(d.up.NetConn, func() { lost.Store(true); d.up.Abort() })()
	idle := d.st.s.Core.Tunnels.WatchIdle(d.up.Abort, &d.st.uploaded, &in)
	defer idle.Stop()
	w := flushWriter{&d.st.w}
	err := w.Flush() // the head
	if err == nil {
		err = relay.Pump(d.st.ruling.Masking(w), relay.End{Conn: d.up.NetConn, In: &d.up.In, Read: &in})
	}
	d.st.x.Event.BytesIn = in.Load()
	switch {
	case lost.Load():
		return tunnel.ErrLost
	case ended.Load():
		return nil
	}
	return err
}

// flushWriter flushes after every write.
type flushWriter struct{ *response }

func (f flushWriter) Write(b []byte) (int, error) {
	n, err := f.response.Write(b)
	if err != nil {
		return n, err
	}
	return n, f.Flush()
}

// upstreamWriter is the server as an [io.Writer].
type upstreamWriter struct{ up *origin.Conn }

func (u upstreamWriter) Write(b []byte) (int, error) {
	if err := u.up.Write(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// fromClient passes on what the client sends.
func (d *downgrade) fromClient(to io.Writer) error {
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	for {
		n, err := d.st.Read(*buf)
		d.st.uploaded.Add(int64(n))
		if _, failed := to.Write((*buf)[:n]); failed != nil {
			return failed
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
