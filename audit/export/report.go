package export

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// report logs failures, each at most once per quiet period. Safe for concurrent use.
type report struct {
	log          *zap.Logger
	warnInterval time.Duration

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
		r.log.Warn("decisions cannot be exported", zap.Error(err))
		r.failing, r.warned = true, time.Now()
	}
	r.mu.Unlock()
	r.logDropped(dropped, false)
}

// logRecovery logs a recovery after a failure.
func (r *report) logRecovery(dropped uint64) {
	r.mu.Lock()
	if r.failing {
		r.log.Info("decisions are exported again")
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
