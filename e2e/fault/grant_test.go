package fault

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// passesMinute is longer than a grant for a TTL of one second lasts.
const passesMinute = 65 * time.Second

// Where a DNS name decides, the grant of its address lasts as long as a connection to it and a minute longer, or the
// operator's minimum. A change of the policy ends it immediately.
func TestGrantLastsAsLongAsAConnection(t *testing.T) {
	t.Parallel()
	nightly.Only(t)
	for name, min := range map[string]time.Duration{"without a floor": 0, "with a floor": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grantsOfADay(t, min)
		})
	}
}

func grantsOfADay(t *testing.T, min time.Duration) {
	w := harness.NewWorld(t, func(c *config.Config) { c.DNS.MinGrant = min })
	hosts := map[string]string{"kept.example.org": "198.51.100.121", "left.example.org": "198.51.100.122"}
	for host, at := range hosts {
		if err := w.Net.AddHost(host, at); err != nil {
			t.Fatal(err)
		}
		w.Net.SetTTL(host, 1)
	}
	in := w.Intrude(w.Create(map[string]any{"network_policy": harness.Custom("*.example.org")}))
	at := func(host string) netip.AddrPort { return netip.AddrPortFrom(in.Resolve(host, "ip4"), 4444) }
	kept, left := at("kept.example.org"), at("left.example.org")
	open := in.Dial(kept)
	if !echoes(open) {
		t.Fatal("the server does not answer")
	}
	time.Sleep(passesMinute)
	if !echoes(open) || !serves(in, kept) {
		t.Error("the address of an open connection is good no more")
	}
	if got := serves(in, left); got != (min > 0) {
		t.Errorf("an address without a connection is good: %v", got)
	}
	w.SetPolicy(in.Box, harness.Custom("left.example.org"))
	if echoes(open) || serves(in, kept) {
		t.Error("a grant stood against the policy")
	}
	w.SetPolicy(in.Box, harness.Custom("*.example.org"))
	if !serves(in, kept) {
		t.Error("the address is not good for a minute after the connection")
	}
	if min > 0 {
		return
	}
	time.Sleep(passesMinute)
	if serves(in, kept) {
		t.Error("the address is good for ever")
	}
}

// serves reports whether a box can connect to an echo server, and leaves no connection behind.
func serves(in *harness.Intruder, at netip.AddrPort) bool {
	c, err := in.Connect(at)
	if err != nil {
		return false
	}
	defer c.Close()
	return echoes(c)
}

// echoes reports whether a server echoes its input.
func echoes(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	_, err := io.WriteString(c, "ping")
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 4))
	}
	return err == nil
}
