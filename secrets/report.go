package secrets

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// counts are the metrics of the secrets. Their only label is a name from the configuration, so their number is bounded.
type counts struct{ refreshes, failures *prometheus.CounterVec }

func newCounts(names []string) counts {
	c := counts{
		refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_secret_refreshes_total", Help: "How often the source of a secret was read.",
		}, []string{"secret"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_secret_refresh_failures_total", Help: "How often reading the source of a secret failed.",
		}, []string{"secret"}),
	}
	for _, n := range names { // so that rate() sees the first failure
		c.refreshes.WithLabelValues(n)
		c.failures.WithLabelValues(n)
	}
	return c
}

// The times of each secret, in seconds since 1970.
var (
	readTime = prometheus.NewDesc("boxgate_secret_read_timestamp_seconds",
		"When the source of a secret was last read successfully.", []string{"secret"}, nil)
	expiryTime = prometheus.NewDesc("boxgate_secret_expiry_timestamp_seconds",
		"When the value of a secret expires, if its source sets an expiry.", []string{"secret"}, nil)
)

// Describe implements [prometheus.Collector].
func (s *Secrets) Describe(ch chan<- *prometheus.Desc) {
	ch <- readTime
	ch <- expiryTime
	s.counts.refreshes.Describe(ch)
	s.counts.failures.Describe(ch)
}

// Collect implements [prometheus.Collector]: register the Secrets themselves.
func (s *Secrets) Collect(ch chan<- prometheus.Metric) {
	s.counts.refreshes.Collect(ch)
	s.counts.failures.Collect(ch)
	for _, st := range s.Status() {
		for desc, at := range map[*prometheus.Desc]time.Time{readTime: st.Read, expiryTime: st.Expires} {
			if !at.IsZero() {
				ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(at.UnixMilli())/1000, st.Name)
			}
		}
	}
}

// report counts a refresh, and logs it if the source has begun to fail or works again. output contains a command's
// standard error or a server's answer, masked. valid reports whether the old value may still be used.
func (s *Secrets) report(e *entry, err error, output string, failedBefore, valid bool) {
	s.counts.refreshes.WithLabelValues(e.name).Inc()
	if err == nil {
		if failedBefore {
			s.log.Info("the source of a secret works again", zap.String("secret", e.name))
		}
		return
	}
	s.counts.failures.WithLabelValues(e.name).Inc()
	if s.base.Err() != nil || !e.shouldLog(err) {
		return
	}
	fields := []zap.Field{zap.String("secret", e.name), zap.Error(err), zap.Bool("last_value_still_valid", valid)}
	if output != "" {
		key := "stderr"
		if e.source.Remote != nil {
			key = "answer"
		}
		fields = append(fields, zap.String(key, output))
	}
	s.log.Warn("a secret could not be refreshed", fields...)
}
