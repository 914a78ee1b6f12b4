package budget

import (
	"github.com/prometheus/client_golang/prometheus"

	"boxgate/llm"
	"boxgate/store"
)

// metrics count for all boxes together. The label model is an entry of the table of prices, or [OtherModels] for models without one, so
// that boxes cannot choose it.
type metrics struct {
	book *Book

	requests, tokens, usd *prometheus.CounterVec
	refused               *prometheus.CounterVec
	assumed, overruns     prometheus.Counter
	writes                prometheus.Counter
}

func newMetrics(b *Book) *metrics {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	single := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &metrics{
		book:     b,
		requests: vector("boxgate_model_requests_total", "Metered requests that a model has answered, by the entry of the prices.", "model"),
		tokens:   vector("boxgate_model_tokens_total", "Tokens as vendors reported them, by the entry of the prices and the kind.", "model", "kind"),
		usd:      vector("boxgate_model_cost_usd_total", "Price of these tokens in US dollars, by the entry of the prices.", "model"),
		refused: vector("boxgate_model_refused_total",
			"Metered requests that were refused: by the limit of a box, of a key or of all, for want of a price, or as the store could not be written.", "limit"),
		assumed:  single("boxgate_model_assumed_tokens_total", "Tokens charged for responses that ended before their vendor reported them."),
		overruns: single("boxgate_model_overruns_total", "Requests that cost more than they had reserved."),
		writes:   single("boxgate_model_store_writes_total", "Writes of accounts of models."),
	}
}

var (
	limitUsed = prometheus.NewDesc("boxgate_model_limit_used_ratio", "Used and reserved fraction of limits.model_total, from 0 to 1.", nil, nil)
	reserved  = prometheus.NewDesc("boxgate_model_reserved_tokens", "Tokens that running requests have reserved.", nil, nil)
)

// settled counts one request.
func (m *metrics) settled(p Price, priced bool, u llm.Usage, usd llm.Money, assumed Amount, overrun bool) {
	model := OtherModels
	if priced {
		model = p.Pattern
	}
	m.requests.WithLabelValues(model).Add(float64(u.Requests))
	m.usd.WithLabelValues(model).Add(usd.Float())
	for kind, n := range map[string]uint64{"input": u.Input, "output": u.Output, "cache_read": u.CacheRead, "cache_write": u.CacheWrite, "reasoning": u.Reasoning} {
		m.tokens.WithLabelValues(model, kind).Add(float64(n))
	}
	m.assumed.Add(float64(assumed.Tokens))
	if overrun {
		m.overruns.Inc()
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.tokens, m.usd, m.refused, m.assumed, m.overruns, m.writes}
}

// Describe implements [prometheus.Collector].
func (b *Book) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range b.metrics.all() {
		c.Describe(ch)
	}
	ch <- limitUsed
	ch <- reserved
}

// Collect implements [prometheus.Collector].
func (b *Book) Collect(ch chan<- prometheus.Metric) {
	for _, c := range b.metrics.all() {
		c.Collect(ch)
	}
	b.mu.Lock()
	a := b.readLocked(store.ModelAccountOfAll)
	s, held := a.against("all", b.cfg.All), a.reserved.Tokens
	b.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(reserved, prometheus.GaugeValue, float64(held))
	if s.Limit.Bounds() {
		ch <- prometheus.MustNewConstMetric(limitUsed, prometheus.GaugeValue, s.Ratio())
	}
}

// Ratio returns the used and reserved fraction of the limit, the larger one of tokens and dollars.
func (s Spending) Ratio() float64 {
	spent, most := plus(s.Used, s.Reserved), 0.0
	if s.Limit.Tokens > 0 {
		most = float64(spent.Tokens) / float64(s.Limit.Tokens)
	}
	if s.Limit.USD > 0 {
		most = max(most, float64(spent.USD)/float64(s.Limit.USD))
	}
	return most
}
