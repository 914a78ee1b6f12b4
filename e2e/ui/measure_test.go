package ui

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// busyBrowser is the use of the processor by the browser, in percent of one core, and the durations of long tasks, in milliseconds.
type busyBrowser struct {
	All       float64
	Percent   map[string]float64
	LongTasks []float64
	Seconds   float64 // that the measurement took
}

func (p *page) busy(lasts time.Duration, script string) (b busyBrowser) {
	p.t.Helper()
	if err := json.Unmarshal(p.do("busy", lasts.Milliseconds(), script), &b); err != nil {
		p.t.Fatal(err)
	}
	return b
}

// askers send DNS queries for an allowed name from boxes, each query one decision: of denials, only some are events (docs/reasons.md).
type askers struct {
	conns []net.Conn
	stop  chan struct{}
	ended sync.WaitGroup
}

// ask starts to send queries, so many a second in all, from the boxes in turn.
func ask(t *testing.T, conns []net.Conn, perSecond int) *askers {
	a := &askers{conns: conns, stop: make(chan struct{})}
	a.ended.Add(1)
	go func() {
		defer a.ended.Done()
		const pace = 10 * time.Millisecond
		tick := time.NewTicker(pace)
		defer tick.Stop()
		n, began := 0, time.Now()
		for {
			select {
			case <-a.stop:
				return
			case <-tick.C:
			}
			for due := int(time.Since(began).Seconds() * float64(perSecond)); n < due; n++ {
				_, _ = conns[n%len(conns)].Write(query(n))
			}
		}
	}()
	t.Cleanup(a.end)
	return a
}

func (a *askers) end() {
	select {
	case <-a.stop:
	default:
		close(a.stop)
	}
	a.ended.Wait()
}

// query returns a DNS query.
func query(n int) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: uint16(n), RecursionDesired: true}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName("api.example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	data, err := m.Pack()
	if err != nil {
		panic(err) // the message is constant but for its number
	}
	return data
}

// sockets attaches boxes and returns a UDP socket to the DNS server in each.
func sockets(t *testing.T, w *harness.World, boxes int) (ids []string, conns []net.Conn) {
	t.Helper()
	for i := range boxes {
		f := harness.NewForeignBox(t)
		var made struct{ ID string }
		body := map[string]any{"pid": f.PID, "name": fmt.Sprintf("agent-%03d", i), "labels": []string{fmt.Sprintf("team-%c", 'a'+i%5)}, "network_policy": harness.Custom("api.example.com")}
		if err := w.Client.Do(t.Context(), "POST", "/v2/box/attach", body, &made); err != nil {
			t.Fatalf("box %d: %v", i, err)
		}
		w.Adopt(made.ID, f)
		in := &harness.Intruder{World: w, Box: made.ID}
		err := in.InNetNS(func() error {
			c, err := net.Dial("udp", "10.200.0.1:53")
			if err == nil {
				conns = append(conns, c)
				t.Cleanup(func() { _ = c.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, made.ID)
	}
	return ids, conns
}

// cpuOf returns the time that a process has used of the processor.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+2:]))
	var ticks int
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

func median[T int | float64 | time.Duration](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// Budgets, in percent of one core.
const (
	mostBrowser = 10.0
	mostGateway = 2.0
	mostFrame   = 1000.0 / 60 // of the processor for a frame, in milliseconds
)

// With 200 boxes and 1,000 decisions a second, the page of a box that makes 800 of them uses less than a tenth of one core in the browser,
// and costs the gateway less than a fiftieth.
func TestABusyPageIsCheap(t *testing.T) {
	nightly.Only(t) // 200 boxes, and figures that a busy machine would spoil
	w := harness.NewWorld(t, nil)
	ids, conns := sockets(t, w, 200)
	p := operator(t, w, newBrowser(t, w.Net.Gateway()), "a", viewOptions{"viewport": map[string]int{"width": 1440, "height": 900}})
	ask(t, conns[:1], 800)
	ask(t, conns[1:], 200)
	const window = 5 * time.Second
	var closed, opened []float64
	var seen busyBrowser
	var browser []float64
	for range 3 {
		for _, open := range []bool{false, true} {
			path := "/ui/sign-out"
			if open {
				path = "/ui/boxes/" + ids[0]
			}
			p.do("goto", origin+path)
			if open {
				p.do("wait", "#live.windowed tr")
			}
			p.busy(time.Second, "") // past the first paint
			before := cpuOf(t, w.Process.Process.Pid)
			seen = p.busy(window, "")
			percent := float64(cpuOf(t, w.Process.Process.Pid)-before) / float64(window) * 100
			if open {
				opened, browser = append(opened, percent), append(browser, seen.All)
				if len(seen.LongTasks) > 0 {
					t.Logf("long tasks: %v ms", seen.LongTasks)
				}
			} else {
				closed = append(closed, percent)
			}
		}
	}
	t.Logf("browser %.1f %% of a core (%v); gateway %.1f %% without the page, %.1f %% with it; rows: %s", median(browser), seen.Percent,
		median(closed), median(opened), get[string](p, "text", "#tally"))
	if got := median(browser); got > mostBrowser {
		t.Errorf("the browser uses %.1f %% of a core", got)
	}
	if got := median(opened) - median(closed); got > mostGateway {
		t.Errorf("the page costs the gateway %.1f %% of a core", got)
	}
}

// The page of 200 boxes has its first paint within three times that of an empty page of the same server. 10,000 rows of decisions scroll
// without a task longer than 50 ms.
func TestPagesPaintAndScrollFast(t *testing.T) {
	nightly.Only(t) // 200 boxes, and figures that a busy machine would spoil
	w := harness.NewWorld(t, nil)
	ids, conns := sockets(t, w, 200)
	p := operator(t, w, newBrowser(t, w.Net.Gateway()), "a", nil)
	paint := func(path string) float64 {
		p.do("goto", origin+path)
		return get[float64](p, "evaluate", `new Promise(done => new PerformanceObserver((list, o) => { const e = list.getEntriesByName("first-contentful-paint")[0]; if (e) { o.disconnect(); done(e.startTime); } }).observe({ type: "paint", buffered: true }))`)
	}
	var empty, full []float64
	for range 9 {
		empty, full = append(empty, paint("/healthz")), append(full, paint("/ui/"))
	}
	t.Logf("first paint: %.0f ms of an empty page, %.0f ms of the boxes", median(empty), median(full))
	if median(full) > 3*median(empty) {
		t.Errorf("the first paint takes %.0f ms, that of an empty page %.0f ms", median(full), median(empty))
	}

	a := ask(t, conns[:1], 1000)
	p.visit("/ui/boxes/" + ids[0])
	w.UntilEvery(time.Second, "10,000 rows", func() bool {
		return strings.HasPrefix(get[string](p, "text", "#tally"), "10,000 decisions")
	})
	a.end()
	p.busy(time.Second, "")
	lag := harness.Lag(t)
	const frames = 180
	seen := p.busy(4*time.Second, `(async () => { const box = document.getElementById("live");
		for (let i = 0; i < `+strconv.Itoa(frames)+`; i++) { box.scrollTop += 1500; await new Promise(requestAnimationFrame); } })()`)
	at, end := get[float64](p, "evaluate", `document.getElementById("live").scrollTop`), get[float64](p, "evaluate", `document.getElementById("live").scrollHeight`)
	longest, most := 0.0, 50+10*float64(lag().Milliseconds())
	for _, task := range seen.LongTasks {
		longest = max(longest, task)
	}
	cost := seen.Seconds * seen.All / 100 / frames * 1000
	t.Logf("scrolled to %.0f of %.0f; %.1f ms of the processor for each frame; longest task %.0f ms, programs waited %v for the processor", at, end, cost, longest, lag())
	if at < end/2 || longest > most || cost > mostFrame {
		t.Errorf("scrolled to %.0f of %.0f; %.1f ms for a frame; long tasks of %v ms", at, end, cost, seen.LongTasks)
	}
}
