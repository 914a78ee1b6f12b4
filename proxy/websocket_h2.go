package proxy

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"boxgate/policy"
	"boxgate/proxy/contain"
	"boxgate/proxy/header"
	"boxgate/proxy/problem"
	"boxgate/proxy/socket"
	"boxgate/proxy/tunnel"
)

// serveWebSocket carries an extended CONNECT (RFC 8441) to the upstream as an HTTP/1.1 upgrade, which every WebSocket
// server speaks, and then passes the bytes both ways, to that upstream and nowhere else.
func (st *stream) serveWebSocket() {
	ctx, cancel := context.WithCancel(st.r.Context())
	defer cancel()
	up, err := st.s.upstream1(ctx, &st.ruling)
	if err != nil {
		st.refuseUpstream(err)
		return
	}
	defer up.close()
	stop := context.AfterFunc(ctx, up.abort)
	defer stop()
	d := &downgrade{st: st, up: up, reader: clientAwareReader{conn: up.conn, ctx: ctx, gone: func() bool { return false }}}
	n, err := d.shakeHands()
	if err != nil {
		st.refuseUpstream(&problem.Upstream{Reason: policy.ReasonUpstreamHTTP, Name: st.ruling.request.Name, Err: err})
		return
	}
	if !st.scrubbable(d.res.Status, d.res.Body.Empty(), valuesOf(&d.res)) {
		return
	}
	if d.res.Status != http.StatusSwitchingProtocols {
		d.pass(n)
		return
	}
	st.x.event.Status = http.StatusOK
	header.CopyFields(st.w.Header(), &d.res)
	st.maskHead()
	st.w.Header().Del("Sec-Websocket-Accept")
	up.in.Take(n)
	st.w.WriteHeader(http.StatusOK)
	if err := d.tunnel(); err != nil {
		st.abort(err) // no orderly end
	}
}

// shakeHands asks the upstream for the upgrade and returns the length of the final head.
func (d *downgrade) shakeHands() (int, error) {
	if err := d.st.goesTo(d.up.dial); err != nil {
		return 0, err
	}
	key := make([]byte, 16)
	_, _ = rand.Read(key) // never fails
	nonce := base64.StdEncoding.EncodeToString(key)
	d.st.r.Header.Set("Sec-Websocket-Key", nonce)
	if d.st.r.Header.Get("Sec-Websocket-Version") == "" {
		d.st.r.Header.Set("Sec-Websocket-Version", "13")
	}
	d.up.served++
	d.up.in.Source = &d.reader
	d.reader.begin()
	if _, err := d.up.conn.Write(d.st.head(true)); err != nil {
		return 0, err
	}
	n, err := d.finalHead()
	if err != nil || d.res.Status != http.StatusSwitchingProtocols {
		return n, err
	}
	return n, upgraded(d.st.r.Header.Values, &d.res)
}

// pass brings an answer that is no upgrade to the client.
func (d *downgrade) pass(n int) {
	d.st.x.event.Status = d.res.Status
	header.CopyFields(d.st.w.Header(), &d.res)
	d.st.maskHead()
	d.st.w.WriteHeader(d.res.Status)
	d.body.Begin(d.res.Body, true)
	d.up.in.Take(n)
	if err := d.relay(d.res.Body.UntilClose); err != nil {
		d.st.abort(err)
	}
}

// tunnel passes the bytes of the stream and of the upgraded connection until the server has ended, or the client has and
// the server stays silent.
func (d *downgrade) tunnel() error {
	_ = d.up.conn.SetReadDeadline(time.Time{})
	d.up.in.Source = d.up.conn
	var ended atomic.Bool
	go func() { // ends at the latest with the handler, which closes the body it reads
		defer contain.Panic(d.st.s.p.cfg.Log, d.st.s.box.ID, d.up.abort)
		if err := d.fromClient(); err != nil {
			d.up.abort()
			return
		}
		ended.Store(true)
		socket.CloseWrite(d.up.conn)
		time.AfterFunc(tunnel.Rest, d.up.abort)
	}()
	var in atomic.Int64
	idle := d.st.s.p.tunnels.WatchIdle(d.up.abort, &d.st.uploaded, &in)
	defer idle.Stop()
	w := flushWriter{d.st.w, http.NewResponseController(d.st.w)}
	_, err := w.Write(nil) // the head
	if err == nil {
		err = tunnel.Pump(d.st.ruling.masking(w), tunnel.End{Conn: d.up.conn, In: &d.up.in, Read: &in})
	}
	d.st.x.event.BytesIn = in.Load()
	if ended.Load() {
		return nil
	}
	return err
}

// flushWriter sends what it is given at once.
type flushWriter struct {
	w          http.ResponseWriter
	controller *http.ResponseController
}

func (f flushWriter) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		return n, err
	}
	return n, f.controller.Flush()
}

func (d *downgrade) fromClient() error {
	buf := bodyBuffers.Get()
	defer bodyBuffers.Put(buf)
	for {
		n, err := d.st.r.Body.Read(*buf)
		d.st.uploaded.Add(int64(n))
		if failed := d.up.write((*buf)[:n]); failed != nil {
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
