package host

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	quotas "boxgate/quota"
)

// quotaMetrics show how API keys use their quotas.
type quotaMetrics struct {
	book *quotas.Book
	keys func() []quotas.Holder // all of them: what they have made is not in the book
}

var (
	quotaUsed = prometheus.NewDesc("boxgate_quota_used",
		"What an API key has of a quota, or with the key \"\" all keys together that are not admin keys.", []string{"quota", "key"}, nil)
	quotaLimit = prometheus.NewDesc("boxgate_quota_limit",
		"How much that may be.", []string{"quota", "key"}, nil)
	quotaRefused = prometheus.NewDesc("boxgate_quota_refused_total",
		"Requests and connections that were refused for a quota.", []string{"quota"}, nil)
)

// mostQuotaKeys bounds the keys with metrics of their own to the ones nearest to a quota.
const mostQuotaKeys = 20

func (h *Host) openQuotaMetrics(context.Context) error {
	return h.parts.metrics.Register(quotaMetrics{h.parts.quotas, h.parts.keyHolders})
}

// keyHolders returns all API keys.
func (p *parts) keyHolders() (list []quotas.Holder) {
	all, err := p.store.APIKeys()
	if err != nil {
		p.log.Error("the API keys cannot be read, and have no metrics", zap.Error(err))
	}
	for _, k := range all {
		list = append(list, callerOf(k).Holder())
	}
	return list
}

// Describe implements [prometheus.Collector].
func (m quotaMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- quotaUsed
	ch <- quotaLimit
	ch <- quotaRefused
}

// Collect implements [prometheus.Collector].
func (m quotaMetrics) Collect(ch chan<- prometheus.Metric) {
	show := func(key string, k quotas.Kind, u quotas.Use) {
		if u.Limit == 0 {
			return
		}
		ch <- prometheus.MustNewConstMetric(quotaUsed, prometheus.GaugeValue, float64(u.Used), k.String(), key)
		ch <- prometheus.MustNewConstMetric(quotaLimit, prometheus.GaugeValue, float64(u.Limit), k.String(), key)
	}
	for _, k := range quotas.Kinds() {
		shared, refused := m.book.Shared(k)
		show("", k, shared)
		ch <- prometheus.MustNewConstMetric(quotaRefused, prometheus.CounterValue, float64(refused), k.String())
	}
	for _, h := range m.book.Holders(quotas.APIKey, mostQuotaKeys, m.keys()...) {
		for k, u := range h.Uses {
			show(h.Holder.ID, quotas.Kind(k), u)
		}
	}
}
