package export

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"

	"boxgate/policy/name"
)

// newMetrics makes an exporter of a registry with a metric of each kind.
func newMetrics(t *testing.T, c *collector, interval time.Duration) (*Metrics, *prometheus.Registry) {
	t.Helper()
	r := prometheus.NewRegistry()
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "boxgate_decisions_total", Help: "Decisions."}, []string{"verdict"})
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "boxgate_boxes"})
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "boxgate_duration_seconds", Buckets: []float64{1, 10}})
	summary := prometheus.NewSummary(prometheus.SummaryOpts{Name: "go_pause_seconds", Objectives: map[float64]float64{0.5: 0.1}})
	r.MustRegister(counter, gauge, histogram, summary)
	counter.WithLabelValues("allow").Add(7)
	gauge.Set(-3)
	for _, v := range []float64{0.5, 5, 5, 50} {
		histogram.Observe(v)
		summary.Observe(v)
	}
	m := NewMetrics(Options{
		URL: c.URL + "/v1/metrics", Roots: c.roots(), Headers: map[string]string{"Authorization": "token"}, Log: zap.NewNop(),
		Secret: func(context.Context, string) (name.Secret, error) {
			return name.NewSecret("Bearer of-the-collector"), nil
		},
		Origin: func() Origin { return Origin{Host: "5f2a1c", Name: "host-1", Version: "1.4.0"} },
	}, r, interval)
	m.times = quick
	return m, r
}

// decodeMetrics decodes a request.
func decodeMetrics(t *testing.T, r request) (resource map[string]string, byName map[string]*metrics.Metric) {
	t.Helper()
	var data metrics.MetricsData
	if err := proto.Unmarshal(r.body, &data); err != nil {
		t.Fatal(err)
	}
	if len(data.ResourceMetrics) != 1 || len(data.ResourceMetrics[0].ScopeMetrics) != 1 {
		t.Fatalf("%v", &data)
	}
	resource, byName = map[string]string{}, map[string]*metrics.Metric{}
	for _, a := range data.ResourceMetrics[0].Resource.Attributes {
		resource[a.Key] = a.Value.GetStringValue()
	}
	for _, m := range data.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		byName[m.Name] = m
	}
	return resource, byName
}

// TestMetricsAreTranslated: each kind of metric has its form in OTLP, with names, labels and values unchanged.
func TestMetricsAreTranslated(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	m, _ := newMetrics(t, c, time.Minute)
	m.Close()
	all := c.received()
	if len(all) != 1 || all[0].path != "/v1/metrics" || all[0].header.Get("Content-Type") != "application/x-protobuf" || all[0].header.Get("Authorization") != "Bearer of-the-collector" {
		t.Fatalf("%+v", all)
	}
	resource, by := decodeMetrics(t, all[0])
	if resource["service.name"] != "boxgate" || resource["service.instance.id"] != "5f2a1c" || resource["service.version"] != "1.4.0" {
		t.Errorf("%v", resource)
	}
	sum := by["boxgate_decisions_total"].GetSum()
	if p := sum.GetDataPoints(); len(p) != 1 || p[0].GetAsDouble() != 7 || !sum.IsMonotonic || p[0].StartTimeUnixNano == 0 || p[0].Attributes[0].Key != "verdict" || p[0].Attributes[0].Value.GetStringValue() != "allow" {
		t.Errorf("%v", sum)
	}
	if p := by["boxgate_boxes"].GetGauge().GetDataPoints(); len(p) != 1 || p[0].GetAsDouble() != -3 {
		t.Errorf("%v", p)
	}
	h := by["boxgate_duration_seconds"].GetHistogram().GetDataPoints()
	if len(h) != 1 || h[0].Count != 4 || h[0].GetSum() != 60.5 || len(h[0].ExplicitBounds) != 2 || len(h[0].BucketCounts) != 3 || h[0].BucketCounts[0] != 1 || h[0].BucketCounts[1] != 2 || h[0].BucketCounts[2] != 1 {
		t.Errorf("%v", h)
	}
	if s := by["go_pause_seconds"].GetSummary().GetDataPoints(); len(s) != 1 || s[0].Count != 4 || math.Abs(s[0].Sum-60.5) > 0.01 || len(s[0].QuantileValues) != 1 {
		t.Errorf("%v", s)
	}
	if at, err := m.State(); err != nil || time.Since(at) > patience {
		t.Errorf("%v, %v", at, err)
	}
}

// TestManyMetricsAreSplit: a request has a bounded number of data points, and together they have each point once.
func TestManyMetricsAreSplit(t *testing.T) {
	t.Parallel()
	c := newCollector(t, nil)
	m, r := newMetrics(t, c, time.Minute)
	many := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "boxgate_box_memory_bytes"}, []string{"box"})
	r.MustRegister(many)
	const boxes = 2*maxPoints + 10
	for i := range boxes {
		many.WithLabelValues(strconv.Itoa(i)).Set(1)
	}
	m.Close()
	seen := map[string]bool{}
	for _, req := range c.received() {
		_, by := decodeMetrics(t, req)
		points := by["boxgate_box_memory_bytes"].GetGauge().GetDataPoints()
		if len(points) > maxPoints {
			t.Errorf("%d points in a request", len(points))
		}
		for _, p := range points {
			seen[p.Attributes[0].Value.GetStringValue()] = true
		}
	}
	if len(seen) != boxes || len(c.received()) != 3 {
		t.Errorf("%d points in %d requests", len(seen), len(c.received()))
	}
}

// TestMetricsOfAFailingCollector: whatever the collector does, the exporter goes on with the current values, queues nothing and shows
// its state. A status that is not to be retried waits for the interval.
func TestMetricsOfAFailingCollector(t *testing.T) {
	t.Parallel()
	stalled, enough := make(chan struct{}), make(chan struct{})
	var running atomic.Pointer[Metrics]
	var once sync.Once
	c := newCollector(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch n {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2:
			hangUp(w)
		case 3:
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case 4:
			select { // it is slow
			case <-stalled:
			case <-r.Context().Done():
			}
		default:
			switch m := running.Load(); {
			case m.rejected.Load() == 0: // on a busy machine, this answer may come too late, several times
				w.Header().Set("Content-Type", "application/x-protobuf")
				reply := protowire.AppendTag(nil, 1, protowire.BytesType)
				_, _ = w.Write(protowire.AppendBytes(reply, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 2)))
			case m.sent.Load() >= 3:
				once.Do(func() { close(enough) })
			}
		}
	})
	t.Cleanup(func() { close(stalled) })
	m, r := newMetrics(t, c, 100*time.Millisecond)
	r.MustRegister(m)
	running.Store(m)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { m.Run(ctx); close(done) }()
	select {
	case <-enough:
	case <-time.After(patience):
		t.Fatalf("%d requests", len(c.received()))
	}
	cancel()
	<-done
	if m.failed.Load() < 4 || m.rejected.Load() != 2 {
		t.Errorf("%d failures, %d points rejected", m.failed.Load(), m.rejected.Load())
	}
	if at, err := m.State(); at.IsZero() || err != nil && err.Error() == "" {
		t.Errorf("%v, %v", at, err)
	}
	for _, req := range c.received() {
		if req.path != "/v1/metrics" {
			t.Errorf("a request to %s", req.path)
		}
	}
}

// FuzzRejectedPoints: answers of a collector are read without a panic.
func FuzzRejectedPoints(f *testing.F) {
	f.Add([]byte{0x0a, 0x02, 0x08, 0x02})
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, reply []byte) {
		res := &http.Response{Header: http.Header{"Content-Type": {"application/x-protobuf"}}}
		if n := rejectedPoints(res, reply); int64(n) < 0 {
			t.Error(n)
		}
	})
}
