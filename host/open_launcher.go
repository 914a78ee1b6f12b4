package host

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/host/snapshots"
	"boxgate/launcher"
)

func (p *parts) openLauncher(context.Context) error {
	var err error
	if p.launcher, err = launcher.New(launcherConfig(p.cfg, p.log)); err != nil {
		return err
	}
	p.shelf = snapshots.New(p.log, p.store, p.launcher, func(f func() error) error { return contained(p.log, f) })
	if err := countStates(p.metrics, p.boxes); err != nil {
		return err
	}
	for name, gauge := range map[string]struct {
		help  string
		value func() int
	}{
		"boxgate_deleted_boxes_with_files":         {"deleted boxes whose files are still to be removed", func() int { n, _ := p.launcher.Trash(); return n }},
		"boxgate_deleted_boxes_with_failing_files": {"those of them whose files could not be removed", func() int { _, n := p.launcher.Trash(); return n }},
	} {
		if err := p.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: gauge.help},
			func() float64 { return float64(gauge.value()) })); err != nil {
			return err
		}
	}
	return nil
}

func launcherConfig(cfg config.Config, log *zap.Logger) launcher.Config {
	return launcher.Config{
		StateDir: cfg.StateDir, ImageDir: config.ImageDir(cfg), Runtime: cfg.Launcher.Runtime, Images: cfg.Launcher.AllImages(),
		RunDir: cfg.Launcher.RunDir, Log: log,
	}
}
