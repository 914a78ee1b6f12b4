package keys

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	quotas "boxgate/quota"
)

// quotaMetrics exports the quota usage of API keys.
type quotaMetrics struct {
	book *quotas.Book
	keys func() []quotas.Holder // all keys: the book does not have the objects they have made
}

var (
	quotaUsed = prometheus.NewDesc("boxgate_quota_used",
		"Usage of a quota by an API key; with the key \"\", by all keys that are not admin keys.", []string{"quota", "key"}, nil)
	quotaLimit = prometheus.NewDesc("boxgate_quota_limit",
		"Limit of a quota, with the labels of boxgate_quota_used.", []string{"quota", "key"}, nil)
	quotaRefused = prometheus.NewDesc("boxgate_quota_refused_total",
		"Requests and connections that were refused for a quota.", []string{"quota"}, nil)
)

// mostQuotaKeys limits the metrics of single keys to the ones closest to a quota.
const mostQuotaKeys = 20

// Register registers the metrics of the quotas.
func (k *Service) Register(metrics *prometheus.Registry) error {
	return metrics.Register(quotaMetrics{k.quotas, k.holders})
}

// holders returns all API keys.
func (k *Service) holders() (list []quotas.Holder) {
	all, err := k.keys.All()
	if err != nil {
		k.log.Error("the API keys cannot be read, and have no metrics", zap.Error(err))
	}
	for _, found := range all {
		list = append(list, CallerOf(found).Holder())
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
