package host

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/audit/lines"
	"boxgate/audit/past"
	"boxgate/config"
	"boxgate/host/share"
	"boxgate/internal/buildinfo"
	"boxgate/launcher"
	"boxgate/policy"
)

func (p *parts) openAudit(context.Context) error {
	if err := p.openHistory(); err != nil {
		return err
	}
	if err := p.openExports(); err != nil {
		return err
	}
	var unkept func(policy.BoxID, time.Time)
	if p.past != nil {
		unkept = p.past.Lost
	}
	p.audit = audit.New(audit.Options{Lines: p.lines, History: p.kept, Unkept: unkept, Exports: p.exports, Console: p.cfg.Log.Format == "console", Name: p.boxes.NameOf})
	return errors.Join(p.metrics.Register(p.audit), p.metrics.Register(share.Metrics{Budget: p.memory}), registerProcess(p.metrics))
}

// openHistory opens the decisions that are kept on disk, unless there are to be none. That it cannot be opened keeps nothing else from working.
func (p *parts) openHistory() error {
	bounds := p.cfg.Log.History
	if bounds.Size == 0 {
		return nil
	}
	dir := filepath.Join(p.cfg.StateDir, config.HistoryDir)
	past, err := past.Open(dir, int64(bounds.Size), bounds.Age())
	if err != nil {
		p.log.Error("decisions are not kept, because the history cannot be opened", zap.String("directory", dir), zap.Error(err))
		return nil
	}
	past.Room = launcher.Reserve{Dir: dir, Bytes: int64(p.cfg.Launcher.Reserve)}.Room
	p.past, p.kept = past, lines.New(past)
	return p.metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "boxgate_history_lost_total", Help: "Decisions that are not in the history on disk, because it could not be written in time.",
	}, func() float64 { return float64(p.kept.Lost()) }))
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
