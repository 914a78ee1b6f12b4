package host

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/host/change"
	"boxgate/host/snapshots"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/preflight"
)

func (p *parts) openLauncher(context.Context) error {
	var err error
	c := launcherConfig(p.cfg, p.log)
	c.TakesOver = p.before != nil
	if p.launcher, err = launcher.New(c); err != nil {
		return err
	}
	p.shelf = snapshots.New(p.log, p.store, p.launcher, func(f func() error) error { return change.Contain(p.log, f) })
	if err := state.CountStates(p.metrics, p.boxes); err != nil {
		return err
	}
	for name, gauge := range map[string]struct {
		help  string
		value func() int
	}{
		"boxgate_deleted_boxes_with_files":         {"deleted boxes whose files are still to be removed", func() int { n, _ := p.launcher.Trash(); return n }},
		"boxgate_deleted_boxes_with_failing_files": {"those of them whose files could not be removed", func() int { _, n := p.launcher.Trash(); return n }},
		"boxgate_disk_free_bytes":                  {"bytes free on the disk of state_dir; launcher.reserve of it is kept for the gateway", func() int { return int(p.launcher.Left()) }},
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
		AttachOnly: !cfg.Launcher.Enabled, StateDir: cfg.StateDir, ImageDir: config.ImageDir(cfg), Runtime: cfg.Launcher.Runtime, Images: cfg.Launcher.AllImages(),
		RunDir: cfg.Launcher.RunDir, Disk: diskLimits(cfg.Launcher.Disk), Reserve: int64(cfg.Launcher.Reserve), Log: log,
		IO: launcher.IOLimits{
			ReadBytes: int64(cfg.Launcher.IO.ReadBytes), WriteBytes: int64(cfg.Launcher.IO.WriteBytes),
			Reads: int64(cfg.Launcher.IO.Reads), Writes: int64(cfg.Launcher.IO.Writes),
		},
	}
}

func diskLimits(d config.Disk) launcher.DiskLimits {
	return launcher.DiskLimits{
		Mode: d.Mode, Files: int64(d.Files), Bytes: map[string]int64{
			string(launcher.SizeSmall): int64(d.Small), string(launcher.SizeMedium): int64(d.Medium), string(launcher.SizeLarge): int64(d.Large),
		},
	}
}

// NeedNoBoxes requires that no box was launched on a host that only attaches.
func NeedNoBoxes(cfg config.Config) error {
	if cfg.Launcher.Enabled {
		return nil
	}
	return launcher.NeedNoBoxes(cfg.StateDir)
}

// NeedDiskLimits says what keeps the disks of boxes from being limited as configured.
func NeedDiskLimits(cfg config.Config) error {
	if !cfg.Launcher.Enabled {
		return nil
	}
	err := diskLimits(cfg.Launcher.Disk).Check(cfg.StateDir)
	if errors.Is(err, launcher.ErrNoDiskLimit) {
		return nil // that is a warning
	}
	return err
}

// CheckDiskLimits warns that the disks of boxes are not limited.
func CheckDiskLimits(cfg config.Config) error {
	if !cfg.Launcher.Enabled {
		return nil
	}
	if err := diskLimits(cfg.Launcher.Disk).Check(cfg.StateDir); errors.Is(err, launcher.ErrNoDiskLimit) {
		return preflight.Warnf("%w", err)
	}
	return nil
}

// Images gives access to the image directory of a configuration, without a gateway.
func Images(cfg config.Config) (launcher.Images, error) {
	if err := preflight.NeedRoot(); err != nil {
		return launcher.Images{}, err
	}
	return launcher.ImageStore(launcherConfig(cfg, nil)), nil
}

// EnsureImage builds, pulls or unpacks an image unless it is there.
func EnsureImage(ctx context.Context, cfg config.Config, name string, progress func(string)) error {
	images, err := Images(cfg)
	if err != nil {
		return err
	}
	return images.Ensure(ctx, name, progress)
}
