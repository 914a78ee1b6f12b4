package proxy_test

import (
	"io"
	"net"
	"testing"

	"boxgate/policy"
	"boxgate/proxy/proxytest"
)

// A connection holds the grant for its destination address, and no other, until it is closed, in whatever way.
func TestConnectionsHoldGrants(t *testing.T) {
	t.Parallel()
	r := proxytest.New(t, proxytest.Allow("a.example.com", "b.example.com"))
	server := r.Server(4444, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	r.Names.Grant("a.example.com", server.Addr())
	begin := func() net.Conn {
		c := r.Dial(server)
		if _, err := io.WriteString(c, "\x00x\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := proxytest.FirstLine(c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, second := begin(), begin()
	if n := r.Names.Held("a.example.com"); n != 2 {
		t.Errorf("%d connections hold the grant", n)
	}
	first.Close()
	proxytest.Await(t, "the end of one", func() bool { return r.Names.Held("a.example.com") == 1 })
	r.Policy(policy.Spec{Mode: policy.ModeDenyAll}, nil)
	r.Proxy.Recheck(r.Box.ID)
	if _, err := proxytest.FirstLine(second); err == nil {
		t.Error("a change of the policy did not cut the connection")
	}
	proxytest.Await(t, "the end of the other", func() bool { return r.Names.Held("a.example.com") == 0 })
	if n := r.Names.Held("b.example.com"); n != 0 {
		t.Errorf("%d connections hold what was not granted", n)
	}
}
