package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// hostileBoxes is the number of boxes that concurrently make the gateway hold as much as they can.
const hostileBoxes = 4

// memoryOfTest is the gateway's memory limit in MiB. The boxes of the tests request a multiple of it.
const memoryOfTest = 256

// hoards are the ways of one box to make the gateway hold memory. Each returns after trying at least as much as the
// limits of a box allow. Its connections stay open.
var hoards = map[string]func(in *harness.Intruder, at addresses, open *held){
	"unfinished ClientHellos": func(in *harness.Intruder, at addresses, open *held) {
		each(in, open, 900, netip.AddrPortFrom(at["www.example.com"], 443), func(c net.Conn) {
			_, _ = c.Write(endlessHello())
		})
	},
	"unread HTTP/2 streams": func(in *harness.Intruder, at addresses, open *held) {
		each(in, open, 12, netip.AddrPortFrom(at["api.example.com"], 443), func(c net.Conn) {
			askAndDoNotRead(in, c, "api.example.com", 100)
		})
	},
	"scrubbed brotli": func(in *harness.Intruder, at addresses, open *held) {
		each(in, open, 70, netip.AddrPortFrom(at[harness.OriginName], 443), func(c net.Conn) {
			s := tls.Client(c, &tls.Config{ServerName: harness.OriginName, RootCAs: in.Roots, NextProtos: []string{"http/1.1"}})
			_, _ = fmt.Fprintf(s, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", harness.OriginName)
		})
	},
	"unfinished heads in the clear": func(in *harness.Intruder, at addresses, open *held) {
		each(in, open, 1000, netip.AddrPortFrom(at["www.example.com"], 80), func(c net.Conn) {
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: www.example.com\r\nX: "+strings.Repeat("x", 60<<10))
		})
	},
}

// addresses are the addresses of the servers, resolved first because a box that hoards is refused lookups too.
type addresses map[string]netip.Addr

func resolveAll(in *harness.Intruder) addresses {
	at := addresses{}
	for _, name := range []string{"www.example.com", "api.example.com", harness.OriginName} {
		at[name] = in.Resolve(name, "ip4")
	}
	return at
}

// each does something with n connections to an address, several at a time. The gateway may reset them at any point.
func each(in *harness.Intruder, open *held, n int, to netip.AddrPort, do func(net.Conn)) {
	var all sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		all.Go(func() {
			for next.Add(1) <= int64(n) {
				c, err := in.Connect(to)
				if err != nil {
					continue
				}
				open.add(c)
				_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // limits the attempt
				do(c)
			}
		})
	}
	all.Wait()
}

// endlessHello returns the start of a ClientHello of the maximum length.
func endlessHello() []byte {
	hello := append([]byte{1, 0, 0xf8, 0}, make([]byte, 62000)...)
	var out []byte
	for part := range slices.Chunk(hello, 16<<10) {
		out = append(append(out, 22, 3, 1, byte(len(part)>>8), byte(len(part))), part...)
	}
	return out
}

// askAndDoNotRead makes large requests over HTTP/2 and does not read the answers.
func askAndDoNotRead(in *harness.Intruder, c net.Conn, host string, streams uint32) {
	s := tls.Client(c, &tls.Config{ServerName: host, RootCAs: in.Roots, NextProtos: []string{"h2"}})
	f := &harness.Frames{T: in.T, Conn: s, Framer: http2.NewFramer(s, s), Fields: map[uint32]map[string]string{}}
	f.Encoder = hpack.NewEncoder(&f.Block)
	_, _ = io.WriteString(s, http2.ClientPreface)
	_ = f.WriteSettings()
	for id := range streams {
		f.Send(2*id+1, true, harness.Head(host, harness.Field{":path", "/bytes/50000000"})...)
	}
}

// largestWindow returns an endless brotli answer that needs all of the largest window that the gateway decodes.
func largestWindow(t *testing.T) string {
	t.Helper()
	var body bytes.Buffer
	w := brotli.NewWriterOptions(&body, brotli.WriterOptions{Quality: 5, LGWin: 23})
	if _, err := w.Write(bytes.Repeat([]byte("much of the same. "), 1<<19)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: %d\r\n\r\n%s", body.Len()+1, body.String())
}

// peak measures the gateway's memory until stop is called or the test ends. stop returns the maximum in MiB.
func peak(w *harness.World) (stop func() int) {
	ctx, cancel := context.WithCancel(w.T.Context())
	pid, most, ended := w.Process.Process.Pid, 0, make(chan struct{})
	go func() {
		defer close(ended)
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
				now, err := residentMemory(pid)
				if err != nil {
					return
				}
				most = max(most, now)
			}
		}
	}()
	return func() int {
		cancel()
		<-ended
		return most
	}
}

// TestAttackMemory: several boxes make the gateway hold as much memory as they can, in all ways concurrently and, in
// the nightly tier, in each way. The gateway stays within its memory limit. An existing box keeps working, a new one
// can start, and when the attackers have let go the memory is released.
func TestAttackMemory(t *testing.T) {
	t.Parallel()
	if nightly.Enabled() {
		for name := range hoards {
			t.Run(name, func(t *testing.T) { attackMemory(t, name) })
		}
	}
	t.Run("all at once", func(t *testing.T) { attackMemory(t, slices.Collect(maps.Keys(hoards))...) })
}

func attackMemory(t *testing.T, names ...string) {
	change, start := harness.WithOrigin(t)
	w := harness.NewWorld(t, func(c *config.Config) {
		change(c)
		c.Limits.PeekTimeout = time.Minute // all of it is held at the same time, on a slow machine too
		c.Limits.ProcessMemory = memoryOfTest << 20
	})
	start(w).Answers(largestWindow(t))
	boxes := make([]*harness.Intruder, hostileBoxes)
	for i := range boxes {
		boxes[i] = w.Intrude(hoarder(w))
	}
	stop, peak := bystander(w), peak(w)
	let := hoard(w, boxes, names)
	w.UntilEvery(50*time.Millisecond, "the boxes are refused more", func() bool { return refusedForLimit(w) > 0 })
	untilSteady(w)
	late := w.Intrude(hoarder(w))
	for range 20 {
		begin := time.Now()
		if err := late.Fetch(netip.AddrPortFrom(late.Resolve("api.example.com", "ip4"), 443), "api.example.com"); err != nil || time.Since(begin) > heldUp {
			t.Errorf("a box that came later: %v after %v", err, time.Since(begin))
		}
	}
	n, slowest := stop()
	most := peak()
	t.Logf("%d MiB at most, of %d; %d refusals; the other box made %d requests, the slowest took %v", most, memoryOfTest, refusedForLimit(w), n, slowest)
	if bound := memoryOfTest; most > bound && !harness.RaceDetector() { // the race detector needs additional memory
		t.Errorf("the gateway took %d MiB of %d", most, bound)
	}
	if n < 4 || slowest > heldUp {
		t.Errorf("the other box made %d requests, the slowest took %v", n, slowest)
	}
	let()
	w.UntilEvery(50*time.Millisecond, "nothing is held any more", func() bool { return heldMemory(w) == 0 })
	w.NoInternalErrors()
}

// untilSteady waits until the gateway's memory has not grown for a second, or exceeds its limit.
func untilSteady(w *harness.World) {
	w.T.Helper()
	most, since := 0, time.Now()
	w.UntilEvery(100*time.Millisecond, "the gateway's memory stays as it is", func() bool {
		if now := memory(w); now > most+1 {
			most, since = now, time.Now()
		}
		return most > memoryOfTest || time.Since(since) > time.Second
	})
}

// hoarder creates a box with access to the servers of the hoards.
func hoarder(w *harness.World) string {
	return w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com", harness.OriginName),
		"attach_headers": map[string]any{
			"api.example.com":  map[string]string{"X-Key": harness.Canary},
			harness.OriginName: map[string]any{"headers": map[string]string{"X-Key": harness.Canary}, "scrub": true},
		},
	})
}

// hoard makes every box run the named hoards, and returns a function that closes their connections.
func hoard(w *harness.World, boxes []*harness.Intruder, names []string) (letGo func()) {
	var open held
	var all sync.WaitGroup
	var at []addresses
	for _, in := range boxes {
		at = append(at, resolveAll(in))
	}
	for i, in := range boxes {
		for _, name := range names {
			all.Go(func() { hoards[name](in, at[i], &open) })
		}
	}
	all.Wait()
	return open.close
}

// held are connections that are kept open.
type held struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (h *held) add(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
}

func (h *held) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		c.Close()
	}
	h.conns = nil
}

// heldMemory returns the gateway's metric of memory held for boxes, without connections to servers, which stay open for
// a while.
func heldMemory(w *harness.World) (sum float64) {
	w.T.Helper()
	for line := range strings.Lines(string(w.Metrics())) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(name, "boxgate_memory_held_bytes{") || strings.Contains(name, `"upstreams"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			w.T.Fatalf("metrics: %s", line)
		}
		sum += n
	}
	return sum
}
