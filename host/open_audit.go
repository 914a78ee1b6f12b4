package host

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"boxgate/audit"
	"boxgate/host/share"
	"boxgate/internal/buildinfo"
)

func (p *parts) openAudit(context.Context) error {
	p.audit = audit.New(audit.Options{Lines: p.lines, Console: p.cfg.Log.Format == "console", Name: p.boxes.nameOf})
	return errors.Join(p.metrics.Register(p.audit), p.metrics.Register(share.Metrics{Budget: p.memory}), registerProcess(p.metrics))
}

// registerProcess adds the metrics that every Go program has, and what this one was built from.
func registerProcess(r *prometheus.Registry) error {
	b := buildinfo.Get()
	built := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "boxgate_build_info", Help: "What the gateway was built from; always 1.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go},
	}, func() float64 { return 1 })
	return errors.Join(
		r.Register(collectors.NewGoCollector()), r.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})), r.Register(built),
	)
}
