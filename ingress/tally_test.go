package ingress

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"boxgate/policy"
)

// An address that asks more often than it may is told when to come again, over both versions of HTTP together. Others, and
// other URLs, are served.
func TestRequestsASecond(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.RequestRate = 1 })
	f.tallies.mu.Lock()
	f.tallies.refill = 1e-9 // none within the test
	f.tallies.mu.Unlock()
	box := record(t)
	f.expose("one", box.Server, Auth{Open: true})
	f.expose("two", box.Server, Auth{Open: true})
	h1, h2 := f.client(t, false), f.client(t, true)
	for _, c := range []struct {
		h2     bool
		status int
	}{{false, 200}, {true, 200}, {false, 429}, {true, 429}} {
		client := h1
		if c.h2 {
			client = h2
		}
		resp, body := get(t, client, "https://one"+domain+"/", nil)
		if resp.StatusCode != c.status {
			t.Fatalf("%+v: %s", c, resp.Status)
		}
		if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); c.status == 429 && (err != nil || n < 1 || !strings.Contains(body, string(policy.ReasonLimit))) {
			t.Errorf("Retry-After %q, %s", resp.Header.Get("Retry-After"), body)
		}
	}
	if box.count() != 2 {
		t.Errorf("%d requests reached the box", box.count())
	}
	for what, resp := range map[string]func() int{
		"another URL":     func() int { r, _ := get(t, h2, "https://two"+domain+"/", nil); return r.StatusCode },
		"another visitor": func() int { r, _ := get(t, f.from(t, "127.0.0.2"), "https://one"+domain+"/", nil); return r.StatusCode },
		"plain HTTP":      func() int { return f.raw(t, "GET / HTTP/1.1\r\nHost: one"+domain+"\r\n\r\n").StatusCode },
	} {
		if status := resp(); status != 200 {
			t.Errorf("%s: %d", what, status)
		}
	}
	f.event(t, reason(policy.ReasonLimit))
}

// However many addresses come, only so many are remembered, and none is let through uncounted.
func TestTalliesAreBounded(t *testing.T) {
	t.Parallel()
	all := tallies{refill: 1, burst: 1}
	first := netip.MustParseAddr("2001:db8::")
	for i := range talliesMost + 100 {
		a := first.As16()
		a[5], a[6], a[7] = byte(i>>16), byte(i>>8), byte(i)
		network, _ := netip.AddrFrom16(a).Prefix(64)
		if all.of(fmt.Sprint("url", i%3), network) == nil {
			t.Fatal("a network without tally")
		}
	}
	if n := len(all.kept); n != talliesMost {
		t.Errorf("%d are kept", n)
	}
	if all.of("url", netip.Prefix{}) != nil {
		t.Error("a network that is not known has a tally")
	}
}
