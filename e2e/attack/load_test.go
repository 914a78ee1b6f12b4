package attack

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
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
	"boxgate/policy"
	"boxgate/policy/name"
)

// heldUp is the time that distinguishes a request delayed by an attack, which waits for its end, from a busy machine.
const heldUp = time.Minute

// bystander makes requests from another box until stop is called, and fails the test if one fails. stop returns the
// number of requests and the time of the slowest.
func bystander(w *harness.World) (stop func() (int, time.Duration)) {
	w.T.Helper()
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	addresses := map[string]netip.AddrPort{}
	for _, host := range []string{"api.example.com", "www.example.com"} {
		addresses[host] = netip.AddrPortFrom(in.Resolve(host, "ip4"), 443)
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
				if err := in.Fetch(to, host); err != nil {
					in.T.Errorf("another box: %s: %v", host, err)
					return
				}
				r.n, r.slowest = r.n+1, max(r.slowest, time.Since(begin))
				time.Sleep(50 * time.Millisecond) // a bystander must not be a load itself
			}
		}
	}()
	return func() (int, time.Duration) {
		ended.Store(true)
		r := <-done
		return r.n, r.slowest
	}
}

// TestAttackManyConnections opens more connections than a box may have, silent ones and tunnels. The excess is reset
// and recorded. Another box is not affected.
func TestAttackManyConnections(t *testing.T) {
	t.Parallel()
	most := nightly.Size(300, 2048)
	w := harness.NewWorld(t, func(c *config.Config) {
		c.Limits.Connections = most
		c.Limits.PeekTimeout = time.Minute // silent connections must not time out on a slow machine
	})
	stop := bystander(w)
	in := w.Intrude(w.Create(map[string]any{"network_policy": harness.Custom("www.example.com")}))
	to := netip.AddrPortFrom(in.Resolve("www.example.com", "ip4"), 443)
	all := most * 3 / 2
	conns := make([]net.Conn, all)
	var group sync.WaitGroup
	for worker := range 50 {
		group.Go(func() {
			for i := worker; i < all; i += 50 {
				conns[i], _ = in.Connect(to) // it may be reset this early
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
	w.UntilEvery(20*time.Millisecond, "connections are refused for the limit", func() bool {
		_, refused = limited(in, time.Time{}, policy.StageConn)
		return refused >= uint64(all-most-100)
	})
	if refused == uint64(all) {
		t.Errorf("%d of %d connections were refused for the limit", refused, all)
	}
	if n, slowest := stop(); n < 4 || slowest > heldUp {
		t.Errorf("the other box made %d requests, the slowest took %v", n, slowest)
	}
	// Afterwards the box may connect again.
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
	w.UntilEvery(50*time.Millisecond, "the box connects after the attack", func() bool { return in.Fetch(to, "www.example.com") == nil })
	w.NoInternalErrors()
}

// refusedForLimit returns the number of refusals for a limit in the log. One line may count many.
func refusedForLimit(w *harness.World) (total int) {
	w.T.Helper()
	for line := range strings.Lines(w.ReadLog()) {
		var e struct {
			Reason string
			Count  int
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Reason == string(name.ReasonLimit) {
			total += max(1, e.Count)
		}
	}
	return total
}

// memory returns the resident memory of the gateway process in MiB.
func memory(w *harness.World) int {
	w.T.Helper()
	mib, err := residentMemory(w.Process.Process.Pid)
	if err != nil {
		w.T.Fatal(err)
	}
	return mib
}

// residentMemory returns the resident memory of a process in MiB.
func residentMemory(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kb, err := strconv.Atoi(number) // a process that has ended has no VmRSS
	return kb >> 10, err
}

// TestAttackSlowReaders requests a lot without reading it, over every way through the proxy, and writes requests that
// never end. The gateway buffers at most a window of each, and another box is not affected.
func TestAttackSlowReaders(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	stop := bystander(w)
	before := memory(w)
	api := netip.AddrPortFrom(in.Resolve("api.example.com", "ip4"), 443)
	www := netip.AddrPortFrom(in.Resolve("www.example.com", "ip4"), 443)
	const big = " /bytes/50000000 HTTP/1.1\r\nHost: "
	for range nightly.Size(10, 50) {
		for _, c := range []net.Conn{in.TLS(in.Dial(api), "api.example.com"), harness.TLSUnchecked(in.Dial(www), "www.example.com")} {
			host := map[bool]string{true: "api.example.com", false: "www.example.com"}[c.RemoteAddr().String() == api.String()]
			if _, err := io.WriteString(c, "GET"+big+host+"\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			d := in.Dial(netip.AddrPortFrom(www.Addr(), 80))
			if _, err := io.WriteString(d, "POST"+big+"www.example.com\r\nContent-Length: 1000000\r\n\r\nslow"); err != nil {
				t.Fatal(err)
			}
		}
	}
	const clients, streams = 20, 100
	open := make([]*harness.Frames, clients) // first, because the streams leave no memory for more connections
	for i := range open {
		open[i] = in.Frames("api.example.com")
	}
	for _, f := range open {
		for id := range uint32(streams) {
			f.Send(2*id+1, true, harness.Head("api.example.com", harness.Field{":path", "/bytes/50000000"})...)
		}
	}
	refused := 0
	w.UntilEvery(50*time.Millisecond, "streams beyond the limit are refused", func() bool {
		refused = refusedForLimit(w)
		return refused >= 900
	})
	if refused > clients*streams-500 {
		t.Errorf("%d of %d streams were refused for the limit", refused, clients*streams)
	}
	grown := memory(w) - before
	t.Logf("%d MiB for %d streams and some connections", grown, clients*streams-refused)
	bound := 500
	if harness.RaceDetector() {
		bound *= 2 // this binary is the gateway, and the race detector needs memory
	}
	if grown > bound {
		t.Errorf("the gateway grew by %d MiB", grown)
	}
	if n, slowest := stop(); n < 4 || slowest > heldUp {
		t.Errorf("the other box made %d requests, the slowest took %v", n, slowest)
	}
	w.NoInternalErrors()
}
