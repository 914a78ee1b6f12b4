package export

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"
)

// Metrics sends the metrics of a gateway to a collector by OTLP (http/protobuf). Each request has the current values, so a collector
// that fails costs resolution only, and no queue. Create it with [NewMetrics].
type Metrics struct {
	options  Options
	gatherer prometheus.Gatherer
	interval time.Duration
	times    times
	client   *http.Client
	started  time.Time
	report   report

	sent, failed, rejected atomic.Uint64 // requests; data points
	succeeded              atomic.Int64  // time of the last export that was accepted, in Unix nanoseconds; 0: never

	mu  sync.Mutex
	err error // of the last attempt; nil before
}

// NewMetrics makes an exporter of the metrics of a gatherer. The kind and the key of o are not used.
func NewMetrics(o Options, g prometheus.Gatherer, interval time.Duration) *Metrics {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return &Metrics{
		options: o, gatherer: g, interval: interval, times: defaultTimes, client: newClient(o.Roots), started: time.Now(),
		report: report{log: o.Log.Named("metrics"), warnInterval: defaultTimes.warnInterval, what: "metrics"},
	}
}

// Run exports until ctx ends.
func (m *Metrics) Run(ctx context.Context) {
	for attempts := 0; ; {
		wait := m.interval
		switch a := m.export(ctx, min(m.times.requestTimeout, m.interval)); {
		case a.err == nil || a.noRetry:
			attempts = 0
		default:
			attempts++
			wait = min(wait, m.times.backoff(attempts, a.retryAfter))
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// Close exports once more, within a timeout. Run must have returned. m may be nil, which has no effect.
func (m *Metrics) Close() {
	if m != nil {
		m.export(context.Background(), m.times.stopTimeout)
		m.client.CloseIdleConnections()
	}
}

// export sends the current values, in one request or several.
func (m *Metrics) export(ctx context.Context, patience time.Duration) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	families, err := m.gatherer.Gather()
	if len(families) == 0 && err != nil {
		a = answer{err: errors.New("the metrics cannot be read"), noRetry: true}
	}
	e := encoding{from: m.options.Origin(), started: m.started, now: time.Now()}
	for body := range e.requests(families) {
		if a = m.send(ctx, body); a.err != nil {
			break
		}
		m.rejected.Add(a.rejected)
		m.sent.Add(1)
	}
	if a.err == nil || !errors.Is(ctx.Err(), context.Canceled) { // the gateway stops, and exports once more
		m.note(a)
	}
	return a
}

func (m *Metrics) send(ctx context.Context, body []byte) answer {
	return call{
		client: m.client, options: &m.options, mediaType: "application/x-protobuf", body: body, interpret: interpretMetrics,
		sign: func(context.Context, http.Header) error { return nil },
	}.send(ctx)
}

// note records the result of an export.
func (m *Metrics) note(a answer) {
	m.mu.Lock()
	m.err = a.err
	m.mu.Unlock()
	if a.err != nil {
		m.failed.Add(1)
		m.report.logFailure(a.err, 0)
		return
	}
	m.succeeded.Store(time.Now().UnixNano())
	m.report.logRecovery(0)
}

// State returns the time of the last export that was accepted, which is zero if there was none, and the error of the last attempt.
func (m *Metrics) State() (succeeded time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ns := m.succeeded.Load(); ns > 0 {
		succeeded = time.Unix(0, ns)
	}
	return succeeded, m.err
}

// interpretMetrics implements OTLP's table of retryable status codes for metrics.
func interpretMetrics(res *http.Response, reply []byte) answer {
	switch status := res.StatusCode; {
	case status >= 200 && status < 300:
		return answer{rejected: rejectedPoints(res, reply)}
	case isRetryable(status):
		return answer{err: statusError(res), retryAfter: retryAfter(res.Header)}
	default:
		return answer{err: statusError(res), noRetry: true}
	}
}

// rejectedPoints returns the number of data points that the collector reports as rejected: the field rejected_data_points of
// partial_success in an ExportMetricsServiceResponse.
func rejectedPoints(res *http.Response, reply []byte) uint64 {
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/x-protobuf") {
		return 0
	}
	partial := fieldOf(reply, protowire.BytesType)
	if partial == nil {
		return 0
	}
	n, size := protowire.ConsumeVarint(fieldOf(partial, protowire.VarintType))
	if size < 0 || int64(n) < 0 {
		return 0
	}
	return n
}

// fieldOf returns the first field with the number 1 of a message: its bytes, or its encoded number. It is nil if the message lacks it.
func fieldOf(message []byte, kind protowire.Type) []byte {
	for len(message) > 0 {
		number, is, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if number == 1 && is == kind {
			if kind == protowire.VarintType {
				return message
			}
			value, _ := protowire.ConsumeBytes(message)
			return value
		}
		if n = protowire.ConsumeFieldValue(number, is, message); n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}

var (
	metricsSent     = prometheus.NewDesc("boxgate_metrics_export_sent_total", "Requests with metrics that the collector accepted.", nil, nil)
	metricsFailures = prometheus.NewDesc("boxgate_metrics_export_failures_total", "Exports of metrics that failed.", nil, nil)
	metricsRejected = prometheus.NewDesc("boxgate_metrics_export_rejected_total", "Data points that the collector rejected.", nil, nil)
	metricsLast     = prometheus.NewDesc("boxgate_metrics_export_last_success_timestamp_seconds", "When the collector last accepted the metrics; 0 if it never has.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricsSent, metricsFailures, metricsRejected, metricsLast} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64) {
		ch <- prometheus.MustNewConstMetric(d, kind, value)
	}
	send(metricsSent, prometheus.CounterValue, float64(m.sent.Load()))
	send(metricsFailures, prometheus.CounterValue, float64(m.failed.Load()))
	send(metricsRejected, prometheus.CounterValue, float64(m.rejected.Load()))
	send(metricsLast, prometheus.GaugeValue, float64(m.succeeded.Load())/float64(time.Second))
}
