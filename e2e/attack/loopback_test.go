package attack

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
)

// serveIn answers each connection to an address with one HTTP response. do runs a function in a network namespace.
func serveIn(t *testing.T, do func(func() error) error, at, body string) {
	t.Helper()
	var ln net.Listener
	if err := do(func() (err error) {
		ln, err = net.Listen("tcp", at)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	answer(t, ln, body)
}

// answer answers each connection to a listener with one HTTP response.
func answer(t *testing.T, ln net.Listener, body string) {
	t.Helper()
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
			go func() {
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
}

// TestAttackLoopbackOfTheHost opens public URLs for ports with an application on the box's loopback, and for ports
// where only the host's loopback or another box's has a listener. The first are reached, the others are not.
func TestAttackLoopbackOfTheHost(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	denyAll := func() map[string]any { return map[string]any{"network_policy": map[string]any{"mode": "deny-all"}} }
	neighbour := w.Intrude(w.Create(denyAll()))
	serveIn(t, w.Net.Gateway().Do, "127.0.0.1:7004", "the host")
	serveIn(t, w.Net.Gateway().Do, "[::1]:7004", "the host")
	serveIn(t, neighbour.InNetNS, "127.0.0.1:7005", "the neighbour")
	for _, box := range []string{w.Create(denyAll()), w.Attach(denyAll())} {
		do := w.Intrude(box).InNetNS
		serveIn(t, do, "127.0.0.1:7001", "four")
		serveIn(t, do, "[::1]:7002", "six")
		serveIn(t, do, "0.0.0.0:7003", "any")
		for port, want := range map[int]string{7001: "four", 7002: "six", 7003: "any", 7004: "", 7005: ""} {
			v := visitURL(w, box, map[string]any{"port": port})
			for range 2 {
				status, said := v.ask("GET", "/")
				if want == "" && status != 502 || want != "" && (status != 200 || said != want) {
					t.Errorf("port %d: %d %q, want %q", port, status, said, want)
				}
			}
		}
		// The event has the box's address, however the port is reached.
		e := w.Event(box, func(e audit.Event) bool { return e.Stage == policy.StageURL && e.Port == 7001 })
		if e.Verdict != policy.Allow || !netip.MustParsePrefix("10.200.0.0/16").Contains(e.Addr) {
			t.Errorf("%+v", e)
		}
	}
}
