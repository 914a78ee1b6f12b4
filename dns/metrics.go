package dns

import "github.com/prometheus/client_golang/prometheus"

var upstreamUp = prometheus.NewDesc("boxgate_dns_upstream_up",
	"Whether an upstream DNS server is in use: 0 while it is skipped because it does not answer.", []string{"upstream"}, nil)

var queriesWaiting = prometheus.NewDesc("boxgate_dns_queries_waiting", "DNS queries of boxes that are being answered.", nil, nil)

// Describe implements [prometheus.Collector].
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	ch <- upstreamUp
	ch <- queriesWaiting
	s.up.counts.questions.Describe(ch)
	s.up.counts.latency.Describe(ch)
}

// Collect implements [prometheus.Collector]: register the Server itself.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	for _, u := range s.up.upstreams {
		up := 1.0
		if u.isHeldDown() {
			up = 0
		}
		ch <- prometheus.MustNewConstMetric(upstreamUp, prometheus.GaugeValue, up, u.name)
	}
	ch <- prometheus.MustNewConstMetric(queriesWaiting, prometheus.GaugeValue, float64(s.usages.inFlightTotal()))
	s.up.counts.questions.Collect(ch)
	s.up.counts.latency.Collect(ch)
}
