package proxy

import (
	"bytes"
	"io"
	"net"
	"testing"

	"boxgate/policy"
)

// A box whose tunnels break off while their pipes are full of what it did not read: what is left in the pipes reaches no
// tunnel of another box, which gets the next ones.
func TestBytesOfABrokenTunnelReachNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, policy.Spec{Mode: policy.ModeAllowAll}, func(c *Config) { c.MaxPipes = 4 })
	foreign := bytes.Repeat([]byte("of another box "), 1<<16)
	flood := r.server(7021, func(c net.Conn) {
		defer c.Close()
		for {
			if _, err := c.Write(foreign); err != nil {
				return
			}
		}
	})
	const size = 3 << 20
	zeros := r.server(7022, func(c net.Conn) {
		defer c.Close()
		_, _ = io.ReadFull(c, make([]byte, 2))
		_, _ = c.Write(make([]byte, size))
	})
	lent := r.p.core.Tunnels.Pipes
	floods, second := r.listen(flood), r.second()
	quiet := r.listen(zeros)
	for round := range 20 {
		c := dialTo(t, floods)
		_, _ = io.WriteString(c, "x\n")
		await(t, "a pipe that is stuck", func() bool { return lent() > 0 })
		_ = c.SetLinger(0) // a reset
		_ = c.Close()
		await(t, "its end", func() bool { return lent() == 0 })
		other := second(quiet)
		_, _ = io.WriteString(other, "x\n")
		got, err := io.ReadAll(other)
		if len(got) != size || len(bytes.Trim(got, "\x00")) > 0 {
			t.Fatalf("round %d: %d of %d bytes, %.60q, %v", round, len(got), size, bytes.Trim(got, "\x00"), err)
		}
	}
}
