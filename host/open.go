package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/api/harness"
	"boxgate/audit/lines"
	"boxgate/config"
	"boxgate/host/box"
	"boxgate/host/change"
	"boxgate/host/doctor"
	"boxgate/host/enforce"
	"boxgate/host/handover"
	"boxgate/host/har"
	"boxgate/host/keys"
	"boxgate/host/keysecrets"
	"boxgate/host/listen"
	"boxgate/host/netns"
	"boxgate/host/records"
	"boxgate/host/rules"
	"boxgate/host/schedule"
	"boxgate/host/state"
	"boxgate/host/urls"
	"boxgate/host/usage"
	"boxgate/internal/fault"
	"boxgate/internal/required"
	"boxgate/observe"
	"boxgate/policy"
	"boxgate/store/history"
)

// Options configures a gateway.
type Options struct {
	Config    config.Config
	Addresses config.Addresses
	Listeners *listen.Sockets // closed by the caller
	Apart     *netns.Net      // network namespace of the boxes' links and rules, the same as for Listeners; nil: the gateway's own
	Log       *zap.Logger
	Decisions *lines.Writer         // receives a line per decision; nil: disabled
	NoWatch   bool                  // for tests: do not restore kernel rules that other programs change
	Ready     func()                // called when all servers are running; may be nil
	Text      []byte                // the configuration file's content, for a successor that runs the same program
	Before    *handover.Predecessor // the process being replaced; may be nil
	Control   Control               // handles commands on the control socket; nil: all are refused
}

// Open builds a gateway. On return the protected ranges are applied and no box is known yet ([Host.Recover]). If it
// fails, it closes what it opened, but leaves kernel rules in place, so that running boxes stay contained. A panic is
// returned as an error.
func Open(ctx context.Context, o Options) (h *Host, err error) {
	err = change.Contain(o.Log, func() (err error) {
		h, err = open(ctx, o)
		return err
	})
	return h, err
}

// opening is a gateway under construction: everything that the steps of [open] have made so far.
type opening struct {
	services
	parts  *parts
	turn   *adminTurn
	health *health
}

// open is Open without the conversion of panics.
func open(ctx context.Context, options Options) (*Host, error) {
	p, err := newParts(options)
	if err != nil {
		return nil, err
	}
	if options.Control == nil {
		options.Control = func(context.Context, string) (any, error) {
			return nil, errors.New("this gateway takes no requests of commands")
		}
	}
	o := &opening{parts: p}
	// The functions are only called once the gateway serves.
	o.turn = newAdminTurn(func(hash [sha256.Size]byte) (api.Key, bool) { return o.keys.LookUp(hash) }, p.dialAdmin)
	p.visits = usage.NewVisits(p.boxes, p.reach, func(ctx context.Context, id policy.BoxID) error { return o.usage.Wake(ctx, id) })
	steps := []func(context.Context) error{
		p.openStore, func(ctx context.Context) error { return fault.At(ctx, "start: store open") },
		p.openTrail, p.openFleet, p.openSecrets, p.openAudit, p.openModels, p.openEgress, func(ctx context.Context) error { return fault.At(ctx, "start: DNS and proxy made") },
		p.openAdminTLS, p.openRemote, p.openSSH, p.openIngress, p.openLauncher, func(ctx context.Context) error { return fault.At(ctx, "start: launcher open") },
		p.openFirewall, p.holdSecrets, p.openMeter, o.openHealth,
		o.openKeys, o.openURLs, o.openRules, o.openUsage, o.openLife, o.openRecords, o.openApprovals, o.openKubernetes, o.openShared, o.complete,
		o.protect, func(ctx context.Context) error { return fault.At(ctx, "start: kernel rules in force") },
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	return &Host{
		services: o.services, parts: p, options: options, turn: o.turn, health: o.health, loops: newLoops(), succession: newSuccession(),
	}, nil
}

// complete returns an error that lists missing fields.
func (o *opening) complete(context.Context) error {
	return errors.Join(required.Fields(o.parts), required.Fields(&o.services))
}

// openHealth opens the health checks and their metrics.
func (o *opening) openHealth(context.Context) error {
	p := o.parts
	o.health = &health{serving: &serving{log: p.log, timeout: acceptTime}, proxy: p.proxy, ingress: p.ingress, unremoved: p.firewall.Unremoved, pushed: p.pushed, ssh: p.ssh}
	return errors.Join(p.metrics.Register(limitMetrics{p}), p.metrics.Register(capacityMetrics{o.health}))
}

// kernel returns the kernel rules for boxes.
func (p *parts) kernel() enforce.Kernel {
	if p.apart != nil {
		return unforwarded{p.firewall}
	}
	return p.firewall
}

// openKeys loads the API keys and their resource accounts.
func (o *opening) openKeys(context.Context) (err error) {
	p := o.parts
	if p.holdings, err = keys.NewHoldings(keys.HoldingsConfig{Log: p.log, Book: p.quotas, Boxes: p.boxes, Keys: p.store.Keys, Snapshots: p.store.Snapshots, Layer: p.launcher.LayerSize, Elsewhere: p.snapshotManager.Elsewhere, ElsewhereLayer: p.snapshotManager.LayerSize, Space: p.launcher.CheckFree}); err != nil {
		return err
	}
	if o.keys, err = keys.New(keys.Config{Log: p.log, Store: p.store, Keys: p.store.Keys, Quotas: p.quotas, Models: p.models, Changed: o.keysChanged, Fleet: p.fleetKeys()}); err != nil {
		return err
	}
	if o.keySecrets, err = keysecrets.New(keysecrets.Config{
		Log: p.log, Values: p.keySecrets, Holdings: p.holdings, Cut: withPredecessor{p.proxy, p.before, p.boxes}.Revoke,
		Replaced: func(id string) { p.before.SendOrder(handover.Message{Kind: handover.Secret, Secret: id}) },
	}); err != nil {
		return err
	}
	return o.keys.Register(p.metrics)
}

// openURLs opens the service of public URLs.
func (o *opening) openURLs(context.Context) (err error) {
	p := o.parts
	p.dialect = &dialectNames{turn: o.turn}
	if p.cfg.E2B.Enabled {
		p.dialect.serveIn(p.urlTable, p.boxes.Has)
	}
	o.publicURLs, err = urls.New(urls.Config{
		Ingress: p.cfg.Ingress, HTTPS: p.listeners.PortOfHTTPS(), HTTP: p.listeners.PortOfHTTP(), Log: p.log, Store: p.store.URLs, Visitors: p.ingress, Boxes: p.boxes,
		Table: p.urlTable, Reach: p.reach, Domains: p.domains, Holdings: p.holdings, Claims: p.fleetDomains(), Before: p.before, TokenFields: p.tokenFields(),
	})
	return err
}

// openRules opens the services that apply policies.
func (o *opening) openRules(context.Context) error {
	p := o.parts
	ceiling, err := p.cfg.Policy.CompileCeiling()
	if err != nil {
		return fmt.Errorf("policy.ceiling: %w", err)
	}
	p.recordCeiling()
	upstream, err := p.cfg.Proxy.Upstream.Compile()
	if err != nil {
		return fmt.Errorf("proxy.upstream: %w", err)
	}
	cluster, err := p.cfg.Network.Cluster.Compile()
	if err != nil {
		return fmt.Errorf("network.cluster: %w", err)
	}
	p.shared = rules.NewShared(ceiling, upstream, p.addrs.Sources).WithServices(p.forBoxes).WithCluster(cluster)
	p.net = &enforce.Enforcer{
		Kernel: p.kernel(), Proxy: withPredecessor{p.proxy, p.before, p.boxes}, Boxes: p.connected, Forget: []func(policy.BoxID){p.dns.Forget, p.minter.Remove, p.remote.Forget, p.ssh.CloseBox},
	}
	o.policies, err = rules.New(rules.Config{Resolver: p.dns, Audit: p.cfg.Policy.Audit, Log: p.log, Store: p.store.Rules, Records: p.store.Boxes, Keys: p.store.Keys, Boxes: p.boxes, Shared: p.shared, Net: p.net, Trail: p.trail.Log(), Before: p.before, Fleet: p.fleetPolicies(), HostID: p.hostID(), Headers: p.fleetHeaders(),
		Observed: func(ctx context.Context, id policy.BoxID) (observe.Summary, error) {
			return o.events.Observations(ctx, id)
		}})
	if err != nil {
		return err
	}
	o.quota, err = rules.NewQuota(rules.QuotaConfig{Log: p.log, Meter: p.meter, Boxes: p.boxes, Rules: o.policies, Visitors: p.ingress, Before: p.before})
	if err != nil {
		return err
	}
	o.protection = rules.NewProtection(p.log, p.addrs, o.policies)
	return nil
}

// recordCeiling records the operator's ceiling in the history of policies. A store that cannot be written does not
// prevent the start.
func (p *parts) recordCeiling() {
	var ceiling *policy.Spec
	if p.cfg.Policy.Ceiling.Spec.Mode != "" {
		ceiling = &p.cfg.Policy.Ceiling.Spec
	}
	if err := p.store.History.SetCeiling(ceiling, history.Origin{Cause: history.Configured}); err != nil {
		p.log.Warn("policy.ceiling is not in the history of policies", zap.Error(err))
	}
}

// openUsage opens the services that run commands in boxes, and their idle and disk guards.
func (o *opening) openUsage(context.Context) error {
	p := o.parts
	held := state.Sandboxes{Launcher: p.launcher}
	o.authorities = box.NewAuthorities(p.store.Authorities, p.minter, p.urlCA)
	provisioner, err := box.NewProvisioner(box.ProvisionerConfig{
		Log: p.log, Records: p.store.Boxes, Rules: p.store.Rules, Installation: p.store.Installation, Shared: p.shared, Net: p.net, Sandboxes: held, Minter: p.minter, Authorities: o.authorities, URLs: o.publicURLs,
		Reach: p.reach, Fetch: p.snapshotManager.Fetch, Roots: p.addedRoots, Agents: p.introduction(), DNS: []netip.Addr{p.addrs.GatewayV4, p.addrs.GatewayV6},
	})
	if err != nil {
		return err
	}
	p.provisioner = provisioner
	o.usage, err = usage.New(usage.Config{
		Log: p.log, Records: p.store.Boxes, Boxes: p.boxes, Sandboxes: held, Starter: provisioner, History: p.history, Space: p.holdings.CheckSpace, Metrics: p.metrics,
	})
	if err != nil {
		return err
	}
	o.idle, err = usage.NewIdlePauser(usage.IdlePauserConfig{
		After: p.cfg.Launcher.IdleTimeout, Log: p.log, Usage: o.usage, Audit: p.audit, Before: p.before, Traffic: p.firewall.Traffic, Passing: p.proxy.Passing,
	})
	o.disk = usage.NewDiskGuard(o.usage, p.launcher.Writes, p.launcher.Reserve())
	return err
}

// openLife opens the services that create and delete boxes.
func (o *opening) openLife(context.Context) (err error) {
	p := o.parts
	o.settings = box.NewSettings(p.log, p.store.Boxes, p.store.Environment, p.boxes, p.shared)
	o.snapshots = box.NewSnapshots(p.log, p.boxes, p.snapshotManager, p.holdings)
	o.git = usage.NewGit(o.usage, o.settings)
	o.scheduled, err = schedule.New(schedule.Config{
		Log: p.log, Store: p.store.Schedules, Boxes: p.boxes, Commands: o.usage, Agents: &harness.Runner{Commands: o.usage, Settings: o.settings, History: p.history}, History: p.history, Authorities: o.authorities, Proxy: p.proxy, Roots: p.roots, Holdings: p.holdings,
	})
	if err != nil {
		return err
	}
	o.lifecycle, err = box.New(box.Config{
		Config: p.cfg, Addresses: p.addrs, Provisioner: p.provisioner, Audit: p.audit, Firewall: p.firewall, Boxes: p.boxes, Visitors: p.ingress, Usage: o.usage,
		Meter: p.meter, Models: p.models, Quota: o.quota, Settings: o.settings, Snapshots: o.snapshots, Schedules: o.scheduled, History: p.history, Holdings: p.holdings,
		CutRemote: p.cutRemote, Admit: p.admitByFleet, Names: p.fleetNames(),
	})
	return err
}

// openRecords opens the services of decisions, the audit trail, secrets, self-tests and diagnoses.
func (o *opening) openRecords(context.Context) (err error) {
	p := o.parts
	o.events = records.NewDecisions(p.audit, p.past, p.historyLines, p.observed)
	o.versions = rules.NewVersions(p.store.History)
	o.auditTrail = p.trail
	o.sources = keys.NewSecrets(p.log, p.secrets, p.tokens)
	o.selfTests, err = box.NewSelfTests(box.SelfTestsConfig{
		Config: p.cfg, Addresses: p.addrs, Ports: p.listeners.ClosedToBoxes, Explicit: listen.ExplicitPort, Audit: p.audit, Boxes: p.boxes,
		Sandboxes: state.Sandboxes{Launcher: p.launcher},
	})
	if err != nil {
		return err
	}
	o.captures = &har.Service{Boxes: p.boxes, Proxy: p.proxy}
	o.doctor, err = doctor.New(doctor.Config{
		Log: p.log, Addresses: p.addrs, Boxes: p.boxes, Life: o.lifecycle, Rules: o.policies, Commands: o.usage, Authorities: o.authorities, Roots: p.addedRoots,
	})
	return err
}

// keysChanged makes this process and its predecessor check the open requests of an API key again.
func (o *opening) keysChanged(id string) {
	o.turn.forgetKey(id)
	o.keySecrets.KeyChanged(id)
	o.parts.ssh.Recheck()
	o.parts.before.SendOrder(handover.Message{Kind: handover.Keys, APIKey: id})
}

// holdSecrets registers the connections that hold secrets, including a predecessor's.
func (p *parts) holdSecrets(context.Context) error {
	if p.before != nil {
		p.secrets.SetHolders(withPredecessor{p.proxy, p.before, p.boxes})
	}
	return nil
}

// protect applies the protected ranges before any box is known.
func (o *opening) protect(ctx context.Context) error { return o.protection.Update(ctx) }

// Recover recovers the boxes of an earlier run. Call it once, after [Open] and before [Host.Serve]. After an error, close
// the gateway. A panic is returned as an error.
func (h *Host) Recover(ctx context.Context) error {
	err := change.Contain(h.parts.log, func() error {
		if err := h.lifecycle.Recover(ctx); err != nil {
			return err
		}
		if err := h.scheduled.Load(); err != nil {
			return fmt.Errorf("reading schedules: %w", err)
		}
		h.applyShared()
		return fault.At(ctx, "start: boxes known")
	})
	h.health.recovered.Store(err == nil)
	return err
}

// Close releases everything that [Open] opened. Rules, links and boxes stay. Call it once, after Serve has returned.
func (h *Host) Close() error {
	h.usage.Close()
	if h.succession.handedOver {
		h.parts.flushExports() // everything else belongs to the successor
		return nil
	}
	return change.Contain(h.parts.log, h.parts.close)
}
