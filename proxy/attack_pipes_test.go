package proxy_test

import (
	"bytes"
	"io"
	"net"
	"testing"

	"boxgate/policy"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// A box aborts its tunnels while their pipes contain unread data. That data must not reach another box's tunnels, which get
// the same pipes.
func TestBytesOfABrokenTunnelReachNoOther(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *proxy.Config) { c.MaxPipes = 4 })
	foreign := bytes.Repeat([]byte("of another box "), 1<<16)
	flood := r.Server(7021, func(c net.Conn) {
		defer c.Close()
		for {
			if _, err := c.Write(foreign); err != nil {
				return
			}
		}
	})
	const size = 3 << 20
	zeros := r.Server(7022, func(c net.Conn) {
		defer c.Close()
		_, _ = io.ReadFull(c, make([]byte, 2))
		_, _ = c.Write(make([]byte, size))
	})
	lent := r.Core.Tunnels.Pipes
	floods, second := r.Listen(flood), second(r)
	quiet := r.Listen(zeros)
	for round := range 20 {
		c := proxytest.DialTo(t, floods)
		_, _ = io.WriteString(c, "x\n")
		proxytest.Await(t, "a pipe that is stuck", func() bool { return lent() > 0 })
		_ = c.SetLinger(0) // a reset
		_ = c.Close()
		proxytest.Await(t, "its end", func() bool { return lent() == 0 })
		other := second(quiet)
		_, _ = io.WriteString(other, "x\n")
		got, err := io.ReadAll(other)
		if len(got) != size || len(bytes.Trim(got, "\x00")) > 0 {
			t.Fatalf("round %d: %d of %d bytes, %.60q, %v", round, len(got), size, bytes.Trim(got, "\x00"), err)
		}
	}
}
