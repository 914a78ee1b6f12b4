package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/policy"
)

// bystander makes requests from another box until stop is called, which returns how many succeeded and how long the
// slowest took; any that fails fails the test.
func (w *world) bystander() (stop func() (int, time.Duration)) {
	w.t.Helper()
	in := w.intrude(w.create(map[string]any{
		"network_policy": custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": canary}},
	}))
	addresses := map[string]netip.AddrPort{}
	for _, host := range []string{"api.example.com", "www.example.com"} {
		addresses[host] = netip.AddrPortFrom(in.resolve(host, "ip4"), 443)
	}
	var ended atomic.Bool
	type result struct {
		n       int
		slowest time.Duration
	}
	done := make(chan result)
	go func() {
		var r result
		defer func() { done <- r }()
		for !ended.Load() {
			for host, to := range addresses {
				begin := time.Now()
				if err := in.fetch(to, host); err != nil {
					in.t.Errorf("another box: %s: %v", host, err)
					return
				}
				r.n, r.slowest = r.n+1, max(r.slowest, time.Since(begin))
			}
		}
	}()
	return func() (int, time.Duration) {
		ended.Store(true)
		r := <-done
		return r.n, r.slowest
	}
}

// fetch makes one request on a new connection.
func (in *intruder) fetch(to netip.AddrPort, host string) error {
	c, err := in.connect(to)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	s := tlsUnchecked(c, host)
	if err := s.Handshake(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s, "GET /bystander HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return err
	}
	answer, err := io.ReadAll(s)
	if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		err = fmt.Errorf("answer %.80q", answer)
	}
	return err
}

// TestAttackManyConnections opens more connections than a box may have, silent ones and tunnels. The rest of them are
// reset and recorded; another box notices nothing.
func TestAttackManyConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *config.Config) { c.Limits.PeekTimeout = time.Minute }) // none of the silent ones makes room on a slow machine
	stop := w.bystander()
	in := w.intrude(w.create(map[string]any{"network_policy": custom("www.example.com")}))
	to := netip.AddrPortFrom(in.resolve("www.example.com", "ip4"), 443)
	const all = 3000
	conns := make([]net.Conn, all)
	var group sync.WaitGroup
	for worker := range 50 {
		group.Go(func() {
			for i := worker; i < all; i += 50 {
				conns[i], _ = in.connect(to) // a reset may come that early
				if conns[i] != nil && i%3 == 0 {
					_, _ = io.WriteString(conns[i], hello{0x303, []uint16{0x304, 0x303}, []string{"www.example.com"}, false}.String())
				}
			}
		})
	}
	group.Wait()
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	refused := uint64(0)
	w.untilEvery(20*time.Millisecond, "connections are refused for the limit", func() bool {
		_, refused = in.limited(time.Time{}, policy.StageConn)
		return refused >= all-2048-100
	})
	if refused == all {
		t.Errorf("%d of %d connections were refused for the limit", refused, all)
	}
	if n, slowest := stop(); n < 4 || slowest > 3*time.Second {
		t.Errorf("the other box made %d requests, the slowest took %v", n, slowest)
	}
	// When they are gone the box may connect again.
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
	w.untilEvery(50*time.Millisecond, "the box connects after the attack", func() bool { return in.fetch(to, "www.example.com") == nil })
	w.nothingLeaks()
}

// nothingLeaks fails the test if the log says that the gateway itself was at fault.
func (w *world) nothingLeaks() {
	w.t.Helper()
	data := w.readLog()
	for _, bad := range []string{`"panic`, `"reason":"internal"`, "too many open files", "DATA RACE"} {
		if i := strings.Index(data, bad); i >= 0 {
			w.t.Errorf("the gateway's log: %s", last(data[:min(len(data), i+500)], 1000))
		}
	}
}

// readLog returns the gateway's log so far.
func (w *world) readLog() string {
	w.t.Helper()
	data, err := os.ReadFile(w.Log.Name())
	if err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}

// refusedForLimit returns how many decisions the log counts as refused for a limit: one line stands for many.
func (w *world) refusedForLimit() (total int) {
	w.t.Helper()
	for line := range strings.Lines(w.readLog()) {
		var e struct {
			Reason string
			Count  int
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Reason == string(policy.ReasonLimit) {
			total += max(1, e.Count)
		}
	}
	return total
}

// memory is what the gateway process has in memory, in MiB.
func (w *world) memory() int {
	w.t.Helper()
	mib, err := residentMemory(w.Process.Process.Pid)
	if err != nil {
		w.t.Fatal(err)
	}
	return mib
}

// residentMemory is what a process has in memory, in MiB.
func residentMemory(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kb, err := strconv.Atoi(number) // a process that has ended has none
	return kb >> 10, err
}

// TestAttackSlowReaders asks for much and reads nothing, over every way through the proxy; and writes requests that never
// end. The gateway holds no more than a window of each, and another box notices nothing.
func TestAttackSlowReaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	in := w.intrude(w.create(map[string]any{
		"network_policy": custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": canary}},
	}))
	stop := w.bystander()
	before := w.memory()
	api := netip.AddrPortFrom(in.resolve("api.example.com", "ip4"), 443)
	www := netip.AddrPortFrom(in.resolve("www.example.com", "ip4"), 443)
	const big = " /bytes/50000000 HTTP/1.1\r\nHost: "
	for range 50 {
		for _, c := range []net.Conn{in.tls(in.dial(api), "api.example.com"), tlsUnchecked(in.dial(www), "www.example.com")} {
			host := map[bool]string{true: "api.example.com", false: "www.example.com"}[c.RemoteAddr().String() == api.String()]
			if _, err := io.WriteString(c, "GET"+big+host+"\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			d := in.dial(netip.AddrPortFrom(www.Addr(), 80))
			if _, err := io.WriteString(d, "POST"+big+"www.example.com\r\nContent-Length: 1000000\r\n\r\nslow"); err != nil {
				t.Fatal(err)
			}
		}
	}
	const clients, streams = 20, 100
	for range clients {
		f := in.frames("api.example.com")
		for id := range uint32(streams) {
			f.send(2*id+1, true, head("api.example.com", field{":path", "/bytes/50000000"})...)
		}
	}
	refused := 0
	w.untilEvery(50*time.Millisecond, "streams beyond the limit are refused", func() bool {
		refused = w.refusedForLimit()
		return refused >= 900
	})
	if refused > clients*streams-500 {
		t.Errorf("%d of %d streams were refused for the limit", refused, clients*streams)
	}
	grown := w.memory() - before
	t.Logf("%d MiB for %d streams and 200 connections", grown, clients*streams-refused)
	bound := 500
	if raceDetector() {
		bound *= 2 // the gateway is this binary, and the detector keeps books
	}
	if grown > bound {
		t.Errorf("the gateway grew by %d MiB", grown)
	}
	if n, slowest := stop(); n < 4 || slowest > 3*time.Second {
		t.Errorf("the other box made %d requests, the slowest took %v", n, slowest)
	}
	w.nothingLeaks()
}
