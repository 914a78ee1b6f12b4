package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/config"
	"boxgate/firewall"
	"boxgate/host/change"
	"boxgate/host/listen"
	"boxgate/host/meter"
	"boxgate/host/models"
	"boxgate/host/snapshots"
	"boxgate/host/state"
	"boxgate/host/uninstall"
	"boxgate/host/usage"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/preflight"
)

// lastRunInterval is the interval at which a running gateway touches a file. The next gateway reports the kernel's flows that
// began since. The file is in the run directory, on a tmpfs, so a reboot clears it together with the kernel's connection
// table.
const lastRunInterval = time.Second

// lastRun returns when a gateway was last known to run, the zero time if never. It errs on the early side: flows around
// that time are reported twice rather than not at all.
func lastRun(runDir string) time.Time {
	info, err := os.Stat(launcher.LastRunFile(runDir))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime().Add(-2 * lastRunInterval)
}

// noteRun touches the file until ctx is done.
func noteRun(ctx context.Context, runDir string) error {
	path := launcher.LastRunFile(runDir)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("the run directory: %w", err)
	}
	tick := time.NewTicker(lastRunInterval)
	defer tick.Stop()
	for {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // on failure, flows are reported twice
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// forgetRun removes the file, so that the run directory can be removed. Call it when there are no boxes.
func forgetRun(runDir string) { _ = os.Remove(launcher.LastRunFile(runDir)) }

func (p *parts) openFirewall(ctx context.Context) error {
	cfg := firewall.Config{
		PoolV4: p.addrs.PoolV4, PoolV6: p.addrs.PoolV6,
		GatewayV4: p.addrs.GatewayV4, GatewayV6: p.addrs.GatewayV6, SinkV4: p.addrs.SinkV4, SinkV6: p.addrs.SinkV6,
		DNSPort: p.listeners.DNSPort, ProxyPort: p.listeners.ProxyPort, ExplicitPort: listen.ExplicitPort,
		FlowLimit: uint32(p.cfg.Limits.KernelFlows),
		SendRate:  uint64(p.cfg.Limits.Send), ReceiveRate: uint64(p.cfg.Limits.Receive), Sources: p.addrs.Sources, Explain: p.boxes.Explain, Names: p.dns.GrantedNames, Audit: p.audit, Log: p.log,
		LastRun: lastRun(p.launcher.RunDir()),
	}
	err := p.apart.Do(func() (err error) {
		p.firewall, err = firewall.Open(ctx, cfg)
		return err
	})
	if err != nil {
		return fmt.Errorf("kernel rules: %w", err)
	}
	return p.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "boxgate_boxes_unremoved", Help: "closed boxes whose network could not be removed from the kernel; this is retried",
	}, func() float64 { return float64(len(p.firewall.Unremoved())) }))
}

func (p *parts) openLauncher(context.Context) error {
	var err error
	c := launcherConfig(p.cfg, p.log)
	c.TakesOver = p.before != nil
	if p.launcher, err = launcher.New(c); err != nil {
		return err
	}
	p.snapshotManager = snapshots.New(p.log, p.store.Snapshots, p.launcher, func(f func() error) error { return change.Contain(p.log, f) })
	if err := p.shareSnapshots(); err != nil {
		return err
	}
	if err := state.CountStates(p.metrics, p.boxes); err != nil {
		return err
	}
	for name, gauge := range map[string]struct {
		help  string
		value func() int
	}{
		"boxgate_deleted_boxes_with_files":         {"deleted boxes whose files are still to be removed", func() int { n, _ := p.launcher.Trash(); return n }},
		"boxgate_deleted_boxes_with_failing_files": {"deleted boxes whose files could not be removed", func() int { _, n := p.launcher.Trash(); return n }},
		"boxgate_disk_free_bytes":                  {"bytes free on the disk of state_dir; launcher.reserve of it is kept for the gateway", func() int { return int(p.launcher.FreeBytes()) }},
		"boxgate_disk_reserve_bytes":               {"bytes of launcher.reserve that are kept free on the disk of state_dir", func() int { return int(p.launcher.Kept()) }},
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
		AttachOnly: !cfg.Launcher.Enabled, StateDir: cfg.StateDir, ImageDir: config.ImageDir(cfg), Runtime: cfg.Launcher.Runtime, Images: cfg.Launcher.AllImages(), Agents: cfg.Launcher.Agents,
		RunDir: cfg.Launcher.RunDir, Disk: diskLimits(cfg.Launcher.Disk), Reserve: int64(cfg.Launcher.Reserve), Root: cfg.Launcher.Root, Log: log,
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

// RequireNoBoxes returns an error if the host only attaches boxes, but has launched ones.
func RequireNoBoxes(cfg config.Config) error {
	if cfg.Launcher.Enabled {
		return nil
	}
	return launcher.RequireNoBoxes(cfg.StateDir)
}

// NeedDiskLimits returns an error if the disks of boxes cannot be limited as configured.
func NeedDiskLimits(cfg config.Config) error {
	if !cfg.Launcher.Enabled {
		return nil
	}
	err := diskLimits(cfg.Launcher.Disk).Check(cfg.StateDir)
	if errors.Is(err, launcher.ErrNoDiskLimit) {
		return nil // CheckDiskLimits warns about it
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

// NeedImage returns an error if the default image of boxes cannot exist. It returns a warning if it is not on this host yet:
// the first box waits for it. That also applies if it cannot be built here, because attached sandboxes need no image.
func NeedImage(cfg config.Config) error {
	source := cfg.Launcher.Images["default"]
	if !cfg.Launcher.Enabled {
		return nil
	}
	if err := preflight.CheckImage("default", source); err != nil || os.Geteuid() != 0 { // only root can read the image directory
		return err
	}
	if _, err := launcher.ImageStore(launcherConfig(cfg, nil)).Find("default"); err == nil {
		return nil
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil && config.BuiltHere(source) {
		return preflight.Warnf("mmdebstrap is missing, which builds the image %s: boxes with it cannot be launched, but sandboxes can still be attached. "+
			"apt-get install mmdebstrap; or name another image in launcher.images; or set launcher.enabled to false", source)
	}
	return preflight.Warnf("it is not on this host yet, and the first box waits for it, for some minutes: gateway image pull default")
}

// Images opens the image directory of a configuration without a gateway.
func Images(cfg config.Config) (launcher.Images, error) {
	if err := preflight.NeedRoot(); err != nil {
		return launcher.Images{}, err
	}
	return launcher.ImageStore(launcherConfig(cfg, nil)), nil
}

// EnsureImage builds, pulls or unpacks an image unless it is present.
func EnsureImage(ctx context.Context, cfg config.Config, name string, progress func(string)) error {
	images, err := Images(cfg)
	if err != nil {
		return err
	}
	return images.Ensure(ctx, name, progress)
}

// openModels opens the accounts of models.
func (p *parts) openModels(context.Context) (err error) {
	p.models, err = models.New(models.Config{
		Config: p.cfg, Log: p.log, Store: p.store.Models, Keys: p.store.Keys, Records: p.store.Boxes, Boxes: p.boxes, History: p.history,
	})
	if err != nil {
		return err
	}
	return p.metrics.Register(p.models)
}

// openMeter opens the usage meter, which continues from the stored counters.
func (p *parts) openMeter(context.Context) (err error) {
	p.traffic = &remoteTraffic{own: func(id policy.BoxID) (in, out uint64, ok bool) { return p.remote.Transferred(id) }, before: p.before}
	p.meter, err = meter.Open(meter.Config{
		Period: p.cfg.Limits.QuotaPeriod, Boxes: p.boxes.IDs, Kernel: usage.NewCounters(p.boxes, p.firewall, state.Sandboxes{Launcher: p.launcher}, p.traffic.Transferred), Store: p.store.Usages, Log: p.log,
	})
	if err != nil {
		return err
	}
	p.samples = usage.NewSamples(p.boxes, state.Sandboxes{Launcher: p.launcher}, p.meter)
	p.launcher.OnGroupRemoval(func(id policy.BoxID) { p.meter.Read(id) })
	return p.metrics.Register(p.meter)
}

// unforwarded is the kernel of a gateway whose boxes are in a separate network namespace without a route out. Traffic
// that a policy allows by address goes to the proxy instead.
type unforwarded struct{ *firewall.Firewall }

// Apply implements [enforce.Kernel].
func (u unforwarded) Apply(ctx context.Context, id policy.BoxID, plan policy.KernelPlan) error {
	return u.Firewall.Apply(ctx, id, plan.WithoutForwarding())
}

// ApplyAll implements [enforce.Kernel].
func (u unforwarded) ApplyAll(ctx context.Context, plans []firewall.Plan) []error {
	changed := make([]firewall.Plan, len(plans))
	for i, p := range plans {
		changed[i] = firewall.Plan{Box: p.Box, KernelPlan: p.WithoutForwarding()}
	}
	return u.Firewall.ApplyAll(ctx, changed)
}

// Uninstallation lists the kernel state, boxes and files that a gateway with this configuration left behind, including
// its state directory if purge is set. [uninstall.Plan.Run] removes them.
func Uninstallation(cfg config.Config, purge bool) (*uninstall.Plan, error) {
	if err := preflight.NeedRoot(); err != nil {
		return nil, err
	}
	return uninstall.Find(cfg, launcherConfig(cfg, nil), purge)
}
