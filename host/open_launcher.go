package host

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/launcher"
	"boxgate/preflight"
)

func (p *parts) openLauncher(ctx context.Context) error {
	var err error
	p.launcher, err = launcher.New(launcher.Config{
		StateDir: p.cfg.StateDir, ImageDir: config.ImageDir(p.cfg), Runtime: p.cfg.Launcher.Runtime,
		Images: p.cfg.Launcher.Images, RunDir: p.cfg.Launcher.RunDir, Log: p.log,
	})
	if err != nil {
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
	return p.launcher.EnsureImage(ctx, "", func(line string) { p.log.Info("image", zap.String("progress", line)) })
}

// EnsureImage builds or unpacks an image unless it is there.
func EnsureImage(ctx context.Context, cfg config.Config, image string, progress func(string)) error {
	if err := preflight.NeedRoot(); err != nil {
		return err
	}
	l, err := launcher.New(launcher.Config{
		StateDir: cfg.StateDir, ImageDir: config.ImageDir(cfg), Runtime: cfg.Launcher.Runtime, Images: cfg.Launcher.Images,
	})
	if err != nil {
		return err
	}
	return l.EnsureImage(ctx, image, progress)
}
