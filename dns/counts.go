package dns

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are the metrics of the upstream servers. Their labels are names from the configuration and a closed set of
// results, so their number is bounded.
type counts struct {
	questions *prometheus.CounterVec
	latency   *prometheus.HistogramVec
}

// The results of a question to an upstream server.
const (
	resultAnswered = "answered" // with records, or with a negative answer
	resultRefused  = "refused"  // SERVFAIL, REFUSED and the like
	resultSilent   = "silent"   // no answer, or an unreadable one
)

func newCounts(upstreams []string) *counts {
	c := &counts{
		questions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxgate_dns_upstream_questions_total", Help: "Questions to an upstream DNS server, by result.",
		}, []string{"upstream", "result"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "boxgate_dns_upstream_seconds", Help: "How long an upstream DNS server took to answer, whatever the answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 1.5},
		}, []string{"upstream"}),
	}
	for _, name := range upstreams { // so that rate() sees the first one
		for _, result := range []string{resultAnswered, resultRefused, resultSilent} {
			c.questions.WithLabelValues(name, result)
		}
		c.latency.WithLabelValues(name)
	}
	return c
}

// observe counts a question to an upstream, with its result and duration. A nil receiver does not count.
func (c *counts) observe(upstream, result string, took time.Duration) {
	if c == nil {
		return
	}
	c.questions.WithLabelValues(upstream, result).Inc()
	if result != resultSilent {
		c.latency.WithLabelValues(upstream).Observe(took.Seconds())
	}
}
