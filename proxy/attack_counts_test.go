package proxy

import (
	"io"
	"testing"

	"boxgate/policy"
	"boxgate/proxy/live"
	"boxgate/proxy/socket"
	"boxgate/proxy/tunnel"
)

// A server that takes a part of what is on its way and breaks off has got that part: it counts.
func TestAttackBytesOfATunnelThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll})
	box, client := tcpPair(t)
	upstream, server := tcpPair(t)
	_, _ = upstream.SetWriteBuffer(4<<10), server.SetReadBuffer(4<<10)
	if _, err := box.Write(make([]byte, 512<<10)); err != nil { // all of it waits in the sockets
		t.Fatal(err)
	}
	live := &live.Conn{Box: r.box}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.p.core.Tunnels.Splice(client, upstream, tunnel.Counters{In: &live.In, Out: &live.Out, Pipes: &r.p.usages.Of(r.box).Pipes}, r.box.ID)
	}()
	const taken = 64 << 10
	if _, err := io.ReadFull(server, make([]byte, taken)); err != nil {
		t.Fatal(err)
	}
	socket.Reset(server)
	<-done
	if n := live.Out.Load(); n < taken {
		t.Errorf("%d bytes are counted, the server took %d", n, taken)
	}
}

// Requests that are refused for their form count like those that are served.
func TestAttackFloodOfRequestsWithFieldsOfHTTP1(t *testing.T) {
	t.Parallel()
	l := newRig(t, allowAll, patient)
	l.with(func(c *Config) { c.MaxRequests = 1 })
	_, port := l.httpsServer(true, nil)
	l.policy(allowAll, secretFor(api, port))
	r := newRawH2(t, l.dialPair(api, port, true, "h2"))
	for range 20 {
		if r.send(":method", "GET", ":scheme", "https", ":authority", hostPort(port), ":path", "/", "connection", "close") != nil {
			break
		}
	}
	for {
		if _, err := r.framer.ReadFrame(); err != nil {
			break // the connection has ended
		}
	}
	l.p.CloseBox(l.box.ID)
	limited := false
	for _, e := range l.events.wait(t, 3) {
		limited = limited || e.Reason == policy.ReasonLimit
	}
	if !limited {
		t.Error("no refusal is for the limit")
	}
}
