package host

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/audit/archive"
	"boxgate/audit/export"
	"boxgate/audit/lines"
	"boxgate/config"
	"boxgate/host/keysecrets"
	"boxgate/host/records"
	"boxgate/host/share"
	"boxgate/internal/buildinfo"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/secrets"
	"boxgate/secrets/identity"
	"boxgate/store"
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
		unkept = p.past.RecordLoss
	}
	p.audit = audit.New(audit.Options{
		Lines: p.lines, History: p.historyLines, OnHistoryDrop: unkept, Exports: p.exports, Observe: p.openObservations(),
		Console: p.cfg.Log.Format == "console", Name: p.boxes.NameOf,
	})
	return errors.Join(p.metrics.Register(p.audit), p.metrics.Register(share.Metrics{Budget: p.memory}), registerProcess(p.metrics))
}

// openHistory opens the decisions on disk, unless they are disabled. A history that does not open is only logged.
func (p *parts) openHistory() error {
	bounds := p.cfg.Log.History
	if bounds.Size == 0 {
		return nil
	}
	dir := filepath.Join(p.cfg.StateDir, config.HistoryDir)
	past, err := archive.Open(dir, int64(bounds.Size), bounds.Age())
	if err != nil {
		p.log.Error("decisions are not kept, because the history cannot be opened", zap.String("directory", dir), zap.Error(err))
		return nil
	}
	past.CheckSpace = launcher.Reserve{Dir: dir, Bytes: int64(p.cfg.Launcher.Reserve)}.Check
	p.past, p.historyLines = past, lines.New(past)
	return p.metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "boxgate_history_lost_total", Help: "Decisions that are not in the history on disk, because it could not be written in time.",
	}, func() float64 { return float64(p.historyLines.Lost()) }))
}

// openObservations makes the log of observations, and returns its input: nil if it is disabled.
func (p *parts) openObservations() func(audit.Event) {
	bounds := p.cfg.Log.Observations
	if bounds.Size == 0 {
		return nil
	}
	p.observed = observe.New(observe.Options{
		Path: filepath.Join(p.cfg.StateDir, config.ObservationsFile), Keep: bounds.Age(), Size: int64(bounds.Size), Log: p.log,
		CheckSpace: launcher.Reserve{Dir: p.cfg.StateDir, Bytes: int64(p.cfg.Launcher.Reserve)}.Check,
	})
	return p.observed.Observe
}

// registerProcess adds the metrics of the Go runtime and the process, and the build information.
func registerProcess(r *prometheus.Registry) error {
	b := buildinfo.Get()
	built := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "boxgate_build_info", Help: "Version and revision of the gateway as labels; always 1.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go},
	}, func() float64 { return 1 })
	return errors.Join(
		r.Register(collectors.NewGoCollector()), r.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})), r.Register(built),
	)
}

// openExports makes the exporters to the operator's collectors. They are idle until decisions arrive.
func (p *parts) openExports() error {
	c, m := p.cfg.Log.Export, p.cfg.Metrics.OTLP
	if !c.Enabled() && m.Endpoint == "" {
		return nil
	}
	roots, err := exportRoots(p.cfg)
	if err != nil {
		return err
	}
	host, err := p.store.Installation.HostID()
	if err != nil {
		return err
	}
	name, _ := os.Hostname()
	common := export.Options{Roots: roots, Secret: p.secrets.Secret, Log: p.log, Origin: func() export.Origin {
		return export.Origin{Host: host, Name: name, Run: p.audit.ID(), Version: buildinfo.Get().Version}
	}}
	if o := common; c.OTLP.Endpoint != "" {
		o.Kind, o.URL, o.Headers = export.OTLP, c.OTLP.LogsURL(), c.OTLP.Headers
		p.addExport(o, c.OTLP.Denied())
	}
	if o := common; c.Webhook.URL != "" {
		o.Kind, o.URL, o.Headers, o.Key = export.Webhook, c.Webhook.URL, c.Webhook.Headers, c.Webhook.Secret
		p.addExport(o, c.Webhook.Denied())
	}
	if o := common; m.Endpoint != "" {
		o.URL, o.Headers = m.URL(), m.Headers
		p.pushed = export.NewMetrics(o, p.metrics, m.Interval)
		if err := p.metrics.Register(p.pushed); err != nil {
			return err
		}
	}
	if !c.Enabled() {
		return nil
	}
	return p.metrics.Register(p.exporters)
}

func (p *parts) addExport(o export.Options, denied bool) {
	x := export.New(o)
	p.exporters = append(p.exporters, x)
	p.exports = append(p.exports, audit.Export{Lines: x.Lines(), Denied: denied})
}

// flushExports sends the pending lines of all decisions so far. Secrets must still be open.
func (p *parts) flushExports() {
	if p.audit != nil {
		p.audit.Flush()
	}
	p.exporters.Close()
}

// closeExports is flushExports at the end of the gateway, which sends the metrics once more. Both are sent at the same time, so that
// collectors that hang delay the end by one timeout.
func (p *parts) closeExports() {
	var metrics sync.WaitGroup
	metrics.Go(p.pushed.Close)
	p.flushExports()
	metrics.Wait()
}

// exportKey is the configuration key of the roots trusted for collectors only.
const exportKey = "log.export.ca_files"

// exportRoots returns the roots trusted for collectors.
func exportRoots(cfg config.Config) (*x509.CertPool, error) {
	return rootsWith(exportKey, slices.Concat(cfg.Proxy.UpstreamCAFiles, cfg.Log.Export.CAFiles))
}

// openStore opens the store and drops changes that an earlier run staged but did not commit.
func (p *parts) openStore(context.Context) error {
	var err error
	p.store, err = store.Open(store.Options{
		Dir: p.cfg.StateDir, PassphraseEnv: config.PassphraseVariable, Traces: launcher.TracePatterns(p.cfg.StateDir, p.cfg.Launcher.RunDir),
	})
	if err != nil {
		return err
	}
	if p.before == nil { // the predecessor may still need it
		_ = os.Remove(filepath.Join(p.cfg.StateDir, store.FileName) + backupSuffix)
	}
	if _, err := p.store.Keys.Ensure(); err != nil {
		return fmt.Errorf("making the first API key: %w", err)
	}
	// A change that was staged when the gateway died was never acknowledged: the committed state counts.
	cut, err := p.store.Rules.DropStaged()
	if err != nil {
		return err
	}
	for _, c := range cut {
		p.log.Warn("an interrupted change is dropped; the previous state applies", zap.String("box", string(c.Box)), zap.String("named_policy", c.Named), zap.Bool("headers", c.Headers))
	}
	return nil
}

// openTrail opens the audit trail. Failure is fatal, because no change is accepted without it.
func (p *parts) openTrail(context.Context) (err error) {
	p.trail, err = records.OpenTrail(p.log, p.store.Installation, p.cfg.StateDir, p.cfg.Admin.Audit)
	return err
}

// openSecrets opens the operator's secrets. A source that fails to provide a value does not prevent the start; requests
// that need it fail, and the log has the reason.
func (p *parts) openSecrets(context.Context) error {
	if err := p.cfg.Secrets.Exposed(); err != nil {
		p.log.Warn("the configuration shows secrets to others", zap.Error(err))
	}
	var err error
	if p.roots, err = rootsWith(upstreamKey, p.cfg.Proxy.UpstreamCAFiles); err != nil {
		return err
	}
	if p.addedRoots, err = AddedRoots(p.cfg.Proxy.UpstreamCAFiles); err != nil {
		return err
	}
	if err := p.openTokens(); err != nil {
		return err
	}
	if p.secrets, err = secrets.Open(p.cfg.Secrets.Sources, secrets.Options{Log: p.log, Roots: p.roots, Memory: p.store.Installation}); err != nil {
		return err
	}
	if p.keySecrets, err = keysecrets.Open(p.log, p.secrets, p.store.KeySecrets, p.store.Keys); err != nil {
		return err
	}
	return p.metrics.Register(p.secrets)
}

// openTokens makes the issuer of identity tokens for the proxies that header rules forward to.
func (p *parts) openTokens() error {
	name := p.cfg.Proxy.TokenIssuer
	if name == "" {
		host, err := p.store.Installation.HostID()
		if err != nil {
			return err
		}
		name = "urn:boxgate:" + host
	}
	p.tokens = identity.New(name, p.store.Installation, fault.Now)
	return nil
}
