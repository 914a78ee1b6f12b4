package audit

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/policy"
	"boxgate/policy/name"
)

// maxSeries bounds the decision counters. The labels come from closed sets (6 stages, 2 verdicts, some 30 reasons, 6
// actions); if a part of the gateway sets one to free text, the surplus is counted as "other".
const maxSeries = 1000

// metrics are the Prometheus metrics of the decisions. No label contains a host, a path or a box.
type metrics struct {
	decisions *prometheus.CounterVec
	selfTests *prometheus.CounterVec
	bytes     *prometheus.CounterVec
	in, out   func() prometheus.Counter // of bytes
	duration  *prometheus.HistogramVec
	lost      prometheus.Counter
	unlogged  prometheus.CounterFunc
	unnamed   prometheus.Counter
	requests  *requests
	known     seriesCache
}

func newMetrics(unlogged func() uint64) *metrics {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_decisions_total", Help: "Decisions made.",
		}, []string{"stage", "verdict", "reason", "action"}),
		selfTests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_selftest_decisions_total", Help: "Denials caused by self-tests. The other metrics do not count them.",
		}, []string{"stage", "verdict", "reason", "action"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_bytes_total", Help: "Bytes passed: in is towards the boxes, out is from them.",
		}, []string{"direction"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "boxgate_duration_seconds", Help: "How long decided connections, requests and queries took.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10), // 0.5 ms to 131 s
		}, []string{"stage"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "boxgate_lost_total", Help: "Events that slow readers of the stream lost.",
		}),
		unlogged: prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "boxgate_log_lost_total", Help: "Lines that the log lost because it was read too slowly or could not be written.",
		}, func() float64 { return float64(unlogged()) }),
		unnamed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "boxgate_unnamed_flows_total", Help: "Flows forwarded by the kernel whose destination the log does not name.",
		}),
	}
	m.requests = newRequests()
	m.in = sync.OnceValue(func() prometheus.Counter { return m.bytes.WithLabelValues("in") })
	m.out = sync.OnceValue(func() prometheus.Counter { return m.bytes.WithLabelValues("out") })
	return m
}

// Describe implements [prometheus.Collector].
func (l *Log) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range l.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector]: register the Log itself.
func (l *Log) Collect(ch chan<- prometheus.Metric) {
	for _, c := range l.metrics.all() {
		c.Collect(ch)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.decisions, m.selfTests, m.bytes, m.duration, m.lost, m.unlogged, m.unnamed, m.requests.vec}
}

// observe counts one event.
func (m *metrics) observe(e *Event) {
	if e.Phase == PhaseOngoing {
		return // it was counted when it opened
	}
	c := m.countersOf(series{e.Stage, e.Verdict, e.Reason, e.Action})
	if e.SelfTest {
		c.selfTests().Inc()
		return
	}
	m.requests.observe(e)
	if e.Phase != PhaseEnd || e.Verdict != policy.Allow { // otherwise it was counted when it opened
		c.decisions().Add(float64(max(e.Count, 1)))
	}
	if e.BytesIn > 0 {
		m.in().Add(float64(e.BytesIn))
	}
	if e.BytesOut > 0 {
		m.out().Add(float64(e.BytesOut))
	}
	if e.Duration > 0 {
		c.duration().Observe(float64(e.Duration) / float64(time.Second))
	}
}

// counters are the metrics of one series. Each is created by its first event.
type counters struct {
	series
	decisions, selfTests func() prometheus.Counter
	duration             func() prometheus.Observer
}

// countersOf returns the metrics of a series, or the "other" ones if there are too many series.
func (m *metrics) countersOf(s series) *counters {
	return m.known.get(s, func(s series) *counters {
		stage, labels := string(s.stage), []string{string(s.stage), s.verdict.String(), string(s.reason), string(s.action)}
		return &counters{
			series:    s,
			decisions: sync.OnceValue(func() prometheus.Counter { return m.decisions.WithLabelValues(labels...) }),
			selfTests: sync.OnceValue(func() prometheus.Counter { return m.selfTests.WithLabelValues(labels...) }),
			duration:  sync.OnceValue(func() prometheus.Observer { return m.duration.WithLabelValues(stage) }),
		}
	})
}

// series is one combination of labels.
type series struct {
	stage   policy.Stage
	verdict policy.Verdict
	reason  name.Reason
	action  Action
}
