package attack

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// TestAttackIdleConnectionsKeepABoxFromDNS: a box that holds 200 idle TCP connections to DNS, and more to a server by
// name and to one whose TLS is terminated, still gets answers over TCP.
func TestAttackIdleConnectionsKeepABoxFromDNS(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": "v"}},
	})
	in := w.Intrude(box)
	server := netip.MustParseAddrPort("8.8.8.8:53")
	ask := func() {
		t.Helper()
		c := &dns.Conn{Conn: in.Dial(server)}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		err := c.WriteMsg(new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA))
		if err != nil {
			t.Error(err)
			return
		}
		if m, err := c.ReadMsg(); err != nil || len(m.Answer) != 1 {
			t.Errorf("%v %v", m, err)
		}
	}
	ask() // the control
	for _, of := range []struct {
		n    int
		dial func() net.Conn
	}{
		{200, func() net.Conn { return in.Dial(server) }},
		{nightly.Size(20, 200), func() net.Conn { return in.DialHost("www.example.com", 443) }},
		{nightly.Size(20, 200), func() net.Conn { return harness.TLSUnchecked(in.DialHost("api.example.com", 443), "api.example.com") }},
	} {
		for range of.n {
			c := of.dial()
			t.Cleanup(func() { _ = c.Close() })
		}
		ask()
	}
}
