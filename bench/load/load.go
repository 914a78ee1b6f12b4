// Package load generates the load of the benchmarks. A generator is a separate process in the namespace of a client. It
// verifies every answer, and reads the CPU time of the program under test at the start and the end of the measurement.
package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/bench/proc"
	"boxgate/bench/stat"
)

// Kind is a kind of load. It determines the counted unit.
type Kind string

// The kinds.
const (
	KeepAlive Kind = "keepalive" // HTTP/1.1 requests over persistent connections
	Fresh     Kind = "fresh"     // HTTP/1.1 requests, each over a new connection
	HTTP2     Kind = "http2"     // HTTP/2 requests
	GRPC      Kind = "grpc"      // unary gRPC calls
	Download  Kind = "download"  // bytes of response bodies
	Upload    Kind = "upload"    // bytes of request bodies
	Tunnel    Kind = "tunnel"    // connections that send a ClientHello and receive 1 KiB
	Idle      Kind = "idle"      // connections held open after one request
	DNS       Kind = "dns"       // queries
	WebSocket Kind = "websocket" // messages, each returned
	Cut       Kind = "cut"       // connections held open until a change cuts them
)

// Options describe one measurement.
type Options struct {
	Kind    Kind
	Dial    string   // address and port to connect to
	Connect bool     // Dial is an explicit proxy, which must connect to port 443 of the name
	Name    string   // server name and Host; %d is replaced by the number of the name
	Path    string   // of requests
	Header  []string // further fields of requests, as lines
	Conns   int
	Streams int  // concurrent requests per connection, for HTTP/2 and DNS
	Resume  bool // resume TLS sessions
	Size    int64
	Steps   []int // for Idle: the numbers of connections at which memory is read

	Warm, Window time.Duration // before and during the measurement; for Idle, Window is the wait before memory is read
	Count        int64         // number of units, instead of a window

	Names   int64  // number of names, for DNS and Fresh; 0: one
	First   int64  // number of the first name
	Refused bool   // for DNS: the answer is a refusal or the address of a sink
	Ask     string // resolver to query for all names before the measurement

	Plain    bool    // HTTP without TLS
	Change   *Change // for Cut
	Upgraded bool    // for Cut: the connections are WebSockets

	PIDs []int // of the program under test
}

// Result is the result of a measurement.
type Result struct {
	Units   int64
	Seconds float64
	Errors  int64
	Error   string // text of one error
	CPU     int64  // nanoseconds of the program under test
	Client  int64  // nanoseconds of the generator
	P50     float64
	P99     float64 // in microseconds
	TLS     string  // negotiated parameters
	Held    []Held  // for Idle
	Last    float64 // for Cut: microseconds from sending the change until the last connection was cut
	Softirq int64   // nanoseconds that the whole machine spent in softirqs, in the kernel's granularity
	Packets int64   // received and sent at the generator's interfaces
}

// Held is the memory of the program under test with a number of open connections.
type Held struct {
	Conns int
	Bytes int64
}

// PerUnit returns the CPU time of the program under test per unit, in microseconds.
func (r Result) PerUnit() float64 { return float64(r.CPU) / 1e3 / float64(r.Units) }

// Rate returns the units per second.
func (r Result) Rate() float64 { return float64(r.Units) / r.Seconds }

// Run generates the load and measures it.
func Run(ctx context.Context, o Options) (Result, error) {
	g := &generator{Options: o, ctx: ctx, end: make(chan struct{})}
	if err := g.ask(); err != nil {
		return Result{}, fmt.Errorf("asking for the names beforehand: %w", err)
	}
	switch o.Kind {
	case Idle:
		return g.idle()
	case Cut:
		return g.cut()
	}
	work, ok := map[Kind]func(*worker) error{
		KeepAlive: g.keepAlive, Fresh: g.fresh, HTTP2: g.http2, GRPC: g.http2, Download: g.keepAlive, Upload: g.keepAlive,
		Tunnel: g.tunnel, DNS: g.dns, WebSocket: g.webSocket,
	}[o.Kind]
	if !ok {
		return Result{}, fmt.Errorf("no load of kind %q", o.Kind)
	}
	return g.measure(work)
}

// generator is the shared state of the workers of one measurement.
type generator struct {
	Options
	ctx context.Context

	ready              sync.WaitGroup // for the workers' first answers
	recording, stopped atomic.Bool
	end                chan struct{} // closed to abort running work
	units, claimed     atomic.Int64
	errors             atomic.Int64
	name               atomic.Int64
	firstError         sync.Once
	errorText          string
	firstTLS           sync.Once
	tlsText            string
	sessions           sync.Map // name → *tls.Config
}

// measure runs one worker per connection and counts the units done within the window.
func (g *generator) measure(work func(*worker) error) (Result, error) {
	all := make([]worker, g.Conns)
	g.ready.Add(g.Conns)
	var workers sync.WaitGroup
	if g.Count > 0 {
		g.recording.Store(true)
	}
	clock := g.start()
	for i := range all {
		workers.Go(func() { g.repeat(func() error { return work(&all[i]) }) })
	}
	if g.Count == 0 {
		g.awaitReady()
		g.pause(g.Warm)
		clock = g.start()
		g.recording.Store(true)
		g.pauseFor(clock)
	} else {
		workers.Wait()
	}
	result := clock.stop()
	g.recording.Store(false)
	g.stopped.Store(true)
	close(g.end)
	workers.Wait()
	return g.complete(result, all)
}

// most bounds the length of a measurement, in windows.
const most = 10

// pauseFor waits for the window, and for more of them until at least one unit per connection is done.
func (g *generator) pauseFor(c *clock) {
	for range most {
		g.pause(g.Window)
		if g.units.Load()-c.units >= int64(g.Conns) {
			return
		}
	}
}

// worker uses one connection, or one connection at a time.
type worker struct {
	latencies stat.Histogram
	ready     sync.Once
}

// awaitReady waits until every worker has had an answer, with a timeout.
func (g *generator) awaitReady() {
	ready := make(chan struct{})
	go func() {
		g.ready.Wait()
		close(ready)
	}()
	select {
	case <-ready:
	case <-time.After(patience):
		g.recordError(errors.New("not every connection was answered"))
	case <-g.ctx.Done():
	}
}

// complete adds the results of the workers.
func (g *generator) complete(r Result, workers []worker) (Result, error) {
	var all stat.Histogram
	for i := range workers {
		all.Merge(&workers[i].latencies)
	}
	r.Errors, r.Error, r.TLS = g.errors.Load(), g.errorText, g.tlsText
	r.P50, r.P99 = float64(all.Quantile(0.5))/1e3, float64(all.Quantile(0.99))/1e3
	if r.Units == 0 {
		return r, fmt.Errorf("no request was answered; an error: %s", r.Error)
	}
	return r, g.ctx.Err()
}

// repeat calls work until the measurement is over. After a failed connection it retries with growing delays.
func (g *generator) repeat(work func() error) {
	for failures := 0; !g.finished(); {
		if err := work(); err != nil && !g.aborted() {
			g.recordError(err)
			failures++
			g.pause(min(time.Duration(failures)*10*time.Millisecond, time.Second))
		}
	}
}

// finished reports whether the workers must stop.
func (g *generator) finished() bool {
	return g.aborted() || g.Count > 0 && g.claimed.Load() >= g.Count
}

// aborted reports whether running work is being aborted, so that its errors are expected.
func (g *generator) aborted() bool { return g.stopped.Load() || g.ctx.Err() != nil }

// claimUnit claims one unit of a counted measurement. Without a count it succeeds until the measurement ends.
func (g *generator) claimUnit() bool {
	return !g.stopped.Load() && (g.Count == 0 || g.claimed.Add(1) <= g.Count)
}

// recordUnit counts one answered unit and its latency.
func (g *generator) recordUnit(w *worker, begun time.Time) {
	w.ready.Do(g.ready.Done)
	if g.recording.Load() {
		w.latencies.Add(time.Since(begun))
		if g.Kind != Download && g.Kind != Upload {
			g.units.Add(1)
		}
	}
}

// recordBytes counts bytes of bodies.
func (g *generator) recordBytes(n int) {
	if g.recording.Load() && (g.Kind == Download || g.Kind == Upload) {
		g.units.Add(int64(n))
	}
}

func (g *generator) recordError(err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	g.errors.Add(1)
	g.firstError.Do(func() { g.errorText = err.Error() })
}

func (g *generator) pause(d time.Duration) {
	select {
	case <-g.ctx.Done():
	case <-time.After(d):
	}
}

// clock holds the readings at the start of a measurement.
type clock struct {
	g         *generator
	pids      []int
	self      []int
	start     time.Time
	cpu, mine proc.Times
	units     int64
	softirq   int64
	packets   int64
}

// start reads the clocks before the measured part.
func (g *generator) start() *clock {
	c := &clock{g: g, pids: g.PIDs, self: []int{os.Getpid()}}
	c.mine, c.cpu = proc.CPU(c.self), proc.CPU(c.pids)
	c.softirq, c.packets = proc.Softirq(), proc.Packets()
	c.start, c.units = time.Now(), g.units.Load()
	return c
}

// stop reads them again and returns the differences.
func (c *clock) stop() Result {
	units, took := c.g.units.Load()-c.units, time.Since(c.start)
	return Result{
		Units: units, Seconds: took.Seconds(), CPU: proc.CPU(c.pids).Since(c.cpu), Client: proc.CPU(c.self).Since(c.mine),
		Softirq: proc.Softirq() - c.softirq, Packets: proc.Packets() - c.packets,
	}
}
