package host

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/audit/export"
	"boxgate/audit/lines"
)

// TestCollectorsEndTogether: the last decisions and the last metrics are sent at the same time, so that collectors that hang do not add up.
func TestCollectorsEndTogether(t *testing.T) {
	t.Parallel()
	decisions, metrics := make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	serve := func(path string, here, other chan struct{}) {
		mux.HandleFunc(path, func(_ http.ResponseWriter, r *http.Request) {
			close(here)
			select { // answer only when the other is being sent too
			case <-other:
			case <-r.Context().Done():
			}
		})
	}
	serve("/decisions", decisions, metrics)
	serve("/metrics", metrics, decisions)
	collector := httptest.NewServer(mux)
	t.Cleanup(collector.Close)
	p := &parts{metrics: prometheus.NewRegistry()}
	p.metrics.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "boxgate_boxes", Help: "Boxes."}))
	o := export.Options{Kind: export.OTLP, URL: collector.URL + "/decisions", Origin: func() export.Origin { return export.Origin{Host: "5f2a1c"} }}
	p.addExport(o, false)
	o.URL = collector.URL + "/metrics"
	p.pushed = export.NewMetrics(o, p.metrics, time.Minute)
	p.exports[0].Lines.Add([]byte(`{"box":"box-1"}`+"\n"), lines.Reservation{})
	p.closeExports()
	if at, err := p.pushed.State(); err != nil || at.IsZero() {
		t.Errorf("the metrics were not accepted while decisions were being sent: %v", err)
	}
}
