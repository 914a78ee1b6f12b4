// Package export sends decisions to a collector of the operator: by OTLP over HTTP (OpenTelemetry), or in signed
// webhooks (Standard Webhooks). It also sends the metrics of the gateway by OTLP ([Metrics]).
//
// Recording a decision only adds a line to a bounded buffer, as for the other logs: an [Exporter] is the sink of a
// [lines.Writer]. One batch is in flight at a time. It is retried until it is accepted, refused for good, or the
// gateway stops; lines that do not fit into the buffer are dropped and counted.
package export

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"math"
	mathrand "math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/audit/lines"
	"boxgate/policy/name"
)

// Limits of a batch, which has at least one whole event. As JSON it takes up to about four times the bytes.
const (
	batchEvents = 500
	batchBytes  = 256 << 10
)

// Options configure an [Exporter].
type Options struct {
	Kind    Kind
	URL     string            // https, or http on a loopback address
	Headers map[string]string // name of a header → name of the secret with its value
	Key     string            // name of the secret that signs webhooks
	Roots   *x509.CertPool    // nil: the system's
	// Secret returns the value of a secret. It is called before each request.
	Secret func(ctx context.Context, name string) (name.Secret, error)
	// Origin identifies the gateway that made the decisions. It is called for each batch.
	Origin func() Origin
	Log    *zap.Logger // nil: no log
}

// Kind is the protocol used to export decisions.
type Kind string

// The kinds.
const (
	OTLP    Kind = "otlp"
	Webhook Kind = "webhook"
)

// Origin identifies the gateway that made the decisions.
type Origin struct {
	Host    string // ID of the installation
	Name    string // of the host
	Run     string // of the gateway; each run numbers its decisions from 1
	Version string // of the gateway
}

// protocol encodes events as a request, and interprets the answer.
type protocol interface {
	// body returns the body of the request for a batch.
	body(Origin, []audit.Event) ([]byte, error)
	// sign adds the headers that depend on the request.
	sign(ctx context.Context, h http.Header, id string, body []byte) error
	// interpret interprets an answer. reply contains its body, possibly truncated.
	interpret(res *http.Response, reply []byte) answer
}

// times are timeouts and intervals.
type times struct {
	requestTimeout time.Duration // timeout of one request
	firstBackoff   time.Duration // delay after the first attempt; it doubles each time
	maxBackoff     time.Duration // maximum delay between two attempts
	linger         time.Duration // delay after a batch that is not full
	stopTimeout    time.Duration // timeout of Close
	warnInterval   time.Duration // minimum interval of warnings
}

var defaultTimes = times{
	requestTimeout: 20 * time.Second, firstBackoff: time.Second, maxBackoff: time.Minute, linger: 200 * time.Millisecond, stopTimeout: 5 * time.Second, warnInterval: time.Minute,
}

// stopBackoff is the maximum delay between two attempts while the gateway stops.
const stopBackoff = 250 * time.Millisecond

// Exporter sends decisions to one collector.
type Exporter struct {
	options  Options
	times    times
	protocol protocol
	client   *http.Client
	lines    *lines.Writer

	stopping chan struct{}   // closed when Close begins
	ctx      context.Context // ends when sending ends
	cancel   context.CancelFunc

	undelivered                      atomic.Int64 // bytes of lines taken from the buffer but not yet delivered
	sent, refused, abandoned, failed atomic.Uint64
	succeeded                        atomic.Int64 // time of the last accepted batch, in Unix nanoseconds; 0: never

	report report
}

// New makes an exporter. It sends only lines added to its [Exporter.Lines].
func New(o Options) *Exporter { return newExporter(o, defaultTimes) }

func newExporter(o Options, t times) *Exporter {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	x := &Exporter{options: o, times: t, client: newClient(o.Roots), stopping: make(chan struct{})}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	if o.Kind == OTLP {
		x.protocol = otlp{}
	} else {
		x.protocol = webhook{secret: o.Secret, key: o.Key}
	}
	x.lines = lines.New(x)
	x.report = report{log: o.Log.With(zap.String("export", string(o.Kind))), warnInterval: t.warnInterval, what: "decisions"}
	return x
}

// Lines returns the writer for the lines to send: decisions in the JSON of the log.
func (x *Exporter) Lines() *lines.Writer { return x.lines }

// Close sends the pending lines within a timeout, then stops. Lines that could not be sent are dropped and counted. It
// must be called once.
func (x *Exporter) Close() {
	close(x.stopping)
	late := time.AfterFunc(x.times.stopTimeout, x.cancel)
	defer late.Stop()
	for x.lines.Sync() != nil && x.ctx.Err() == nil { // it waits for some time only
	}
	x.cancel()
	_ = x.lines.Sync() // the sink no longer blocks
	x.client.CloseIdleConnections()
	x.report.logDropped(x.dropped(), true)
}

// dropped returns the number of decisions that were not delivered.
func (x *Exporter) dropped() uint64 { return x.lines.Lost() + x.refused.Load() + x.abandoned.Load() }

// TryWrite implements [lines.Sink]. It never writes, because sending takes time.
func (x *Exporter) TryWrite([]byte) (int, bool, error) { return 0, false, nil }

// Write implements [lines.Sink]. It returns when everything has been delivered or given up.
func (x *Exporter) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		x.undelivered.Store(int64(len(rest)))
		n := batchOf(rest)
		x.deliver(rest[:n])
		rest = rest[n:]
	}
	x.undelivered.Store(0)
	if len(b) < batchBytes {
		x.linger()
	}
	return len(b), nil
}

// linger waits for more lines, unless the gateway stops.
func (x *Exporter) linger() {
	t := time.NewTimer(x.times.linger)
	defer t.Stop()
	select {
	case <-t.C:
	case <-x.stopping:
	}
}

// batchOf returns the length of the first batch in b, which is whole lines.
func batchOf(b []byte) (n int) {
	for events := 0; n < len(b) && events < batchEvents; events++ {
		line := bytes.IndexByte(b[n:], '\n') + 1
		if line == 0 {
			line = len(b) - n
		}
		if n > 0 && n+line > batchBytes {
			break
		}
		n += line
	}
	return n
}

// decode returns the events of lines. Lines that cannot be decoded are skipped.
func decode(b []byte) []audit.Event {
	events := make([]audit.Event, 0, bytes.Count(b, []byte{'\n'}))
	for line := range bytes.Lines(b) {
		var e audit.Event
		if json.Unmarshal(line, &e) == nil {
			events = append(events, e)
		}
	}
	return events
}

// deliver sends one batch, and retries it as needed. Once sending has ended it only counts the lines: Close waits for them.
func (x *Exporter) deliver(b []byte) {
	if x.ctx.Err() != nil {
		x.abandoned.Add(uint64(bytes.Count(b, []byte{'\n'})))
		return
	}
	events := decode(b)
	x.refused.Add(uint64(bytes.Count(b, []byte{'\n'}) - len(events)))
	body, err := x.protocol.body(x.options.Origin(), events)
	if err != nil {
		x.refused.Add(uint64(len(events)))
		x.report.logFailure(err, x.dropped())
		return
	}
	id := "msg_" + rand.Text()
	faults := 0 // attempts that count against a limit: a collector that is down or overloaded does not
	for attempts := 1; x.ctx.Err() == nil; attempts++ {
		a := x.send(id, body)
		if a.err == nil {
			x.countAccepted(uint64(len(events)), a)
			return
		}
		x.failed.Add(1)
		if a.maxAttempts > 0 {
			faults++
		}
		final := a.noRetry || a.maxAttempts > 0 && faults >= a.maxAttempts
		if final {
			x.refused.Add(uint64(len(events)))
		}
		x.report.logFailure(a.err, x.dropped())
		if final {
			return
		}
		x.pause(x.times.backoff(attempts, a.retryAfter), a.retryAfter > 0)
	}
	x.abandoned.Add(uint64(len(events)))
}

// countAccepted counts a batch that the collector accepted, fully or in part.
func (x *Exporter) countAccepted(n uint64, a answer) {
	rejected := min(a.rejected, n)
	x.sent.Add(n - rejected)
	x.refused.Add(rejected)
	x.succeeded.Store(time.Now().UnixNano())
	x.report.logRecovery(x.dropped())
}

// backoff returns the delay after that many attempts: the one that the collector requests, or a random part of a delay
// that doubles.
func (t times) backoff(attempts int, asked time.Duration) time.Duration {
	if asked > 0 {
		return asked
	}
	d := min(t.maxBackoff, t.firstBackoff*time.Duration(math.Exp2(float64(min(attempts-1, 20)))))
	return d/2 + mathrand.N(d/2+1)
}

// pause waits. While the gateway stops it waits for at most hasty, unless the collector requested the delay.
func (x *Exporter) pause(d time.Duration, asked bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	if !asked {
		select {
		case <-t.C:
			return
		case <-x.stopping:
			t.Reset(min(d, stopBackoff))
		}
	}
	select {
	case <-t.C:
	case <-x.ctx.Done():
	}
}

// Exporters are all exporters of a gateway.
type Exporters []*Exporter

// Close closes them concurrently.
func (all Exporters) Close() {
	var closing sync.WaitGroup
	for _, x := range all {
		closing.Go(x.Close)
	}
	closing.Wait()
}

// report logs failures, each at most once per quiet period. Safe for concurrent use.
type report struct {
	log          *zap.Logger
	warnInterval time.Duration
	what         string // is exported

	mu          sync.Mutex
	warned      time.Time // when a failure was last logged
	failing     bool      // the recovery has to be logged
	dropsLogged time.Time // when dropped decisions were last logged
	dropped     uint64    // number of dropped decisions already logged
}

// logFailure logs a failure. dropped is the total number of dropped decisions.
func (r *report) logFailure(err error, dropped uint64) {
	r.mu.Lock()
	if time.Since(r.warned) >= r.warnInterval {
		r.log.Warn(r.what+" cannot be exported", zap.Error(err))
		r.failing, r.warned = true, time.Now()
	}
	r.mu.Unlock()
	r.logDropped(dropped, false)
}

// logRecovery logs a recovery after a failure.
func (r *report) logRecovery(dropped uint64) {
	r.mu.Lock()
	if r.failing {
		r.log.Info(r.what + " are exported again")
	}
	r.failing = false
	r.mu.Unlock()
	r.logDropped(dropped, false)
}

// logDropped logs the number of decisions dropped since it last did. If now is set, it ignores the quiet period.
func (r *report) logDropped(dropped uint64, now bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if dropped == r.dropped || !now && time.Since(r.dropsLogged) < r.warnInterval {
		return
	}
	r.log.Warn("decisions were not exported and are dropped", zap.Uint64("dropped", dropped-r.dropped))
	r.dropped, r.dropsLogged = dropped, time.Now()
}

var (
	queued    = prometheus.NewDesc("boxgate_export_queue_bytes", "Bytes of decisions that wait to be exported, or are being sent.", exporterLabel, nil)
	sent      = prometheus.NewDesc("boxgate_export_sent_total", "Decisions that were exported.", exporterLabel, nil)
	dropped   = prometheus.NewDesc("boxgate_export_dropped_total", "Decisions that were not exported.", []string{"exporter", "why"}, nil)
	failures  = prometheus.NewDesc("boxgate_export_failures_total", "Requests that the collector did not accept or answer.", exporterLabel, nil)
	succeeded = prometheus.NewDesc("boxgate_export_last_success_timestamp_seconds", "When the collector last accepted decisions; 0 if it never has.", exporterLabel, nil)

	exporterLabel = []string{"exporter"}
)

// Describe implements [prometheus.Collector].
func (all Exporters) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queued, sent, dropped, failures, succeeded} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (all Exporters) Collect(ch chan<- prometheus.Metric) {
	for _, x := range all {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, value, append([]string{string(x.options.Kind)}, more...)...)
		}
		pending, _ := x.lines.Pending()
		send(queued, prometheus.GaugeValue, float64(int64(pending)+x.undelivered.Load()))
		send(sent, prometheus.CounterValue, float64(x.sent.Load()))
		send(dropped, prometheus.CounterValue, float64(x.lines.Lost()), "full")
		send(dropped, prometheus.CounterValue, float64(x.refused.Load()), "refused")
		send(dropped, prometheus.CounterValue, float64(x.abandoned.Load()), "stopped")
		send(failures, prometheus.CounterValue, float64(x.failed.Load()))
		at := 0.0
		if ns := x.succeeded.Load(); ns > 0 {
			at = float64(ns) / float64(time.Second)
		}
		send(succeeded, prometheus.GaugeValue, at)
	}
}
