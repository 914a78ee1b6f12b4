package audit

import (
	"maps"
	"sync"
	"sync/atomic"
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

// requests counts requests to public URLs by class of status and kind of credential.
type requests struct {
	vec      *prometheus.CounterVec
	counters map[requestLabels]func() prometheus.Counter // immutable
}

type requestLabels struct {
	class      int // hundreds of the status; 0: no answer
	credential Credential
}

// credentials are the kinds that have their own series.
var credentials = []Credential{"", CredentialNone, CredentialBearer, CredentialBasic, CredentialSession, CredentialAccount, CredentialLink}

func newRequests() *requests {
	r := &requests{counters: map[requestLabels]func() prometheus.Counter{}, vec: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "boxgate_url_requests_total", Help: "Requests to public URLs that have ended, by class of status and kind of credential (refused: not admitted).",
	}, []string{"status", "credential"})}
	for class, status := range []string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"} {
		for _, c := range credentials {
			name := string(c)
			if c == "" {
				name = "refused"
			}
			r.counters[requestLabels{class, c}] = sync.OnceValue(func() prometheus.Counter { return r.vec.WithLabelValues(status, name) })
		}
	}
	return r
}

// observe counts an event if it ends a request.
func (r *requests) observe(e *Event) {
	if e.Stage != policy.StageURL || e.Phase == PhaseOpen || e.Phase == PhaseOngoing {
		return
	}
	class := e.Status / 100
	if class < 1 || class > 5 {
		class = 0
	}
	if counter := r.counters[requestLabels{class, e.Credential}]; counter != nil {
		counter().Add(float64(max(e.Count, 1)))
	}
}

// seriesCache is the set of label combinations seen so far, with their metrics. The zero value is empty. Safe for
// concurrent use.
type seriesCache struct {
	recent [64]atomic.Pointer[counters]         // a lookup that needs no hashing of labels
	all    atomic.Pointer[map[series]*counters] // replaced, never modified
	mu     sync.Mutex                           // guards replacing it
}

// slot is the place of s in recent. Another series may occupy it.
func (k *seriesCache) slot(s *series) *atomic.Pointer[counters] {
	return &k.recent[(7*len(s.reason)+3*len(s.action)+len(s.stage)+int(s.verdict))%len(k.recent)]
}

// get returns the metrics of s, or the "other" ones if s has unexpected labels or there are too many series. They are
// created on first use.
func (k *seriesCache) get(s series, make func(series) *counters) *counters {
	slot := k.slot(&s)
	if c := slot.Load(); c != nil && c.series == s {
		return c
	}
	if seen := k.all.Load(); seen != nil {
		if c := (*seen)[s]; c != nil {
			slot.Store(c)
			return c
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	seen := map[series]*counters{}
	if old := k.all.Load(); old != nil {
		seen = *old
	}
	if len(seen) >= maxSeries || !isLabel(string(s.stage)) || !isLabel(string(s.reason)) || !isLabel(string(s.action)) {
		s = series{stage: "other", verdict: s.verdict, reason: "other", action: "other"}
	}
	if c := seen[s]; c != nil {
		return c
	}
	seen = maps.Clone(seen)
	seen[s] = make(s)
	k.all.Store(&seen)
	return seen[s]
}

// isLabel reports whether s has the form of a reason, stage or action: a short word in lower case, or empty.
func isLabel(s string) bool {
	if len(s) > 32 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
