package approvals

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/api"
	"boxgate/internal/fault"
)

// The bounds that refuse requests of boxes, as labels.
const (
	boundRate  = "rate"
	boundOpen  = "open"
	boundDay   = "day"
	boundWaits = "waits"
)

// The results of reviews, as labels.
const (
	reviewAnswered = "answered"
	reviewFailed   = "failed"  // no usable answer
	reviewRefused  = "refused" // the answer could not be applied
	reviewDropped  = "dropped" // too many were waiting
)

// byKey is the label of answers by API keys.
const byKey = "key"

// counts are the counters of a service.
type counts struct {
	asked                      prometheus.Counter
	answered, refused, reviews *prometheus.CounterVec
}

func newCounts() counts {
	c := counts{
		asked:    prometheus.NewCounter(prometheus.CounterOpts{Name: "boxgate_approvals_asked_total", Help: "Requests of boxes for access."}),
		answered: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "boxgate_approvals_answered_total", Help: "Answers to requests of boxes for access."}, []string{"answer", "by"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "boxgate_approvals_refused_total", Help: "Requests of boxes to the endpoint that a bound has refused."}, []string{"bound"}),
		reviews:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "boxgate_approvals_reviews_total", Help: "Requests that the reviewer was asked about."}, []string{"result"}),
	}
	for _, bound := range []string{boundRate, boundOpen, boundDay, boundWaits} {
		c.refused.WithLabelValues(bound)
	}
	for _, answer := range []string{string(api.ApprovalOnce), string(api.ApprovalAlways), string(api.ApprovalDenied), api.ApprovalNeedsHuman} {
		c.answered.WithLabelValues(answer, byKey)
		c.answered.WithLabelValues(answer, byReviewer)
	}
	c.answered.WithLabelValues(string(api.ApprovalOnce), byCeiling)
	for _, result := range []string{reviewAnswered, reviewFailed, reviewRefused, reviewDropped} {
		c.reviews.WithLabelValues(result)
	}
	return c
}

var (
	openRequests  = prometheus.NewDesc("boxgate_approvals_open", "Requests of boxes for access that wait for an answer.", nil, nil)
	oldestRequest = prometheus.NewDesc("boxgate_approvals_oldest_open_seconds", "Age of the oldest request of a box that waits for an answer; 0: there is none.", nil, nil)
	waiting       = prometheus.NewDesc("boxgate_approvals_waiting", "Responses to boxes that wait for an answer.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	ch <- openRequests
	ch <- oldestRequest
	ch <- waiting
	for _, c := range []prometheus.Collector{s.counts.asked, s.counts.answered, s.counts.refused, s.counts.reviews} {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	open, waits, oldest := s.standing()
	gauge := func(d *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	gauge(openRequests, float64(open))
	gauge(oldestRequest, oldest.Seconds())
	gauge(waiting, float64(waits))
	for _, c := range []prometheus.Collector{s.counts.asked, s.counts.answered, s.counts.refused, s.counts.reviews} {
		c.Collect(ch)
	}
}

// standing returns the number of open requests of boxes that exist, of responses that wait, and the age of the oldest request.
func (s *Service) standing() (open, waits int, oldest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := fault.Now()
	for id, a := range s.boxes {
		if !s.Boxes.Has(id) {
			continue
		}
		a.mu.Lock()
		waits += a.waits
		for request, o := range a.open {
			if !now.Before(o.ends) {
				delete(a.open, request)
				continue
			}
			open++
			oldest = max(oldest, now.Sub(o.ends.Add(-Lifetime)))
		}
		a.mu.Unlock()
	}
	return open, waits, oldest
}

// byOf returns the label of whoever answers.
func byOf(caller api.Caller) string {
	if caller.Key == "" && (caller.Name == byReviewer || caller.Name == byCeiling) {
		return caller.Name
	}
	return byKey
}

// resultOf returns the label of a review by the error of applying its answer.
func resultOf(err error) string {
	if err != nil {
		return reviewRefused
	}
	return reviewAnswered
}
