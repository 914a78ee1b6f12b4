package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/audit/lines"
	"boxgate/config"
	"boxgate/host/apart"
	"boxgate/host/box"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/handover"
	"boxgate/host/keys"
	"boxgate/host/listen"
	"boxgate/host/records"
	"boxgate/host/rules"
	"boxgate/host/schedule"
	"boxgate/host/state"
	"boxgate/host/urls"
	"boxgate/host/usage"
	"boxgate/internal/fault"
	"boxgate/internal/required"
	"boxgate/policy"
)

// Options say what a gateway is made of.
type Options struct {
	Config    config.Config
	Addresses config.Addresses
	Listeners *listen.Sockets // the caller closes them
	Apart     *apart.Net      // where the boxes' links and rules are, as for Listeners; nil: in the gateway's own namespace
	Log       *zap.Logger
	Decisions *lines.Writer         // takes a line per decision; nil: none
	NoWatch   bool                  // for tests: kernel rules that other programs change stay changed
	Ready     func()                // called once everything is served; nil: nothing
	Text      []byte                // of the configuration file, for a process of the same program that takes the gateway's place
	Before    *handover.Predecessor // whose place the gateway takes; nil: nobody's
	Control   Control               // what commands can ask for; nil: nothing
}

// Open builds the parts of a gateway. It knows no box yet ([Host.Recover]), and the protected ranges are in force. When it
// fails, nothing it opened stays open; kernel rules stay, so that boxes that run are closed rather than open. A panic of a
// part is an error.
func Open(ctx context.Context, o Options) (h *Host, err error) {
	err = change.Contain(o.Log, func() (err error) {
		h, err = open(ctx, o)
		return err
	})
	return h, err
}

// opening is a gateway that is being opened: what its steps have made so far.
type opening struct {
	services
	parts  *parts
	turn   *adminTurn
	health *health
}

// open is Open but for panics.
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
	// Nobody has a key, or visits, before the gateway serves.
	o.turn = newAdminTurn(func(key string) (api.Key, bool) { return o.keys.LookUp(key) }, p.listeners.DialAdmin)
	p.visits = usage.NewVisits(p.boxes, p.reach, func(ctx context.Context, id policy.BoxID) error { return o.usage.Wake(ctx, id) })
	steps := []func(context.Context) error{
		p.openStore, func(ctx context.Context) error { return fault.At(ctx, "start: store open") },
		p.openTrail, p.openSecrets, p.openAudit, p.openEgress, func(ctx context.Context) error { return fault.At(ctx, "start: DNS and proxy made") },
		p.openIngress, p.openLauncher, func(ctx context.Context) error { return fault.At(ctx, "start: launcher open") },
		p.openFirewall, p.holdSecrets, p.openMeter, o.openHealth,
		o.openKeys, o.openURLs, o.openRules, o.openUsage, o.openLife, o.openRecords, o.complete,
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

// complete returns an error that names what the steps have not opened.
func (o *opening) complete(context.Context) error {
	return errors.Join(required.Fields(o.parts), required.Fields(&o.services))
}

// openHealth opens what knows whether the gateway serves, with its metrics.
func (o *opening) openHealth(context.Context) error {
	p := o.parts
	o.health = &health{serving: &serving{log: p.log, within: acceptTime}, proxy: p.proxy, ingress: p.ingress}
	return errors.Join(p.metrics.Register(limitMetrics{p}), p.metrics.Register(capacityMetrics{o.health}))
}

// kernel returns the rules of boxes in the kernel.
func (p *parts) kernel() enforce.Kernel {
	if p.apart != nil {
		return unforwarded{p.firewall}
	}
	return p.firewall
}

// openKeys opens the API keys and what they hold.
func (o *opening) openKeys(context.Context) (err error) {
	p := o.parts
	if p.holdings, err = keys.NewHoldings(keys.HoldingsConfig{Log: p.log, Book: p.quotas, Boxes: p.boxes, Store: p.store, Layer: p.launcher.LayerSize, Space: p.launcher.Room}); err != nil {
		return err
	}
	if o.keys, err = keys.New(keys.Config{Log: p.log, Store: p.store, Quotas: p.quotas, Changed: o.keysChanged}); err != nil {
		return err
	}
	return o.keys.Register(p.metrics)
}

// openURLs opens the public URLs.
func (o *opening) openURLs(context.Context) (err error) {
	p := o.parts
	o.publicURLs, err = urls.New(urls.Config{
		Ingress: p.cfg.Ingress, HTTPS: p.listeners.PortOfHTTPS(), HTTP: p.listeners.PortOfHTTP(), Log: p.log, Store: p.store, Visitors: p.ingress, Boxes: p.boxes,
		Table: p.urlTable, Reach: p.reach, Domains: p.domains, Holdings: p.holdings, Before: p.before,
	})
	return err
}

// openRules opens what puts policies in force.
func (o *opening) openRules(context.Context) error {
	p := o.parts
	ceiling, err := p.cfg.Policy.CompileCeiling()
	if err != nil {
		return fmt.Errorf("policy.ceiling: %w", err)
	}
	upstream, err := p.cfg.Proxy.Upstream.Compile()
	if err != nil {
		return fmt.Errorf("proxy.upstream: %w", err)
	}
	p.shared = rules.NewShared(ceiling, upstream, p.addrs.Sources)
	p.net = &enforce.Enforcer{
		Kernel: p.kernel(), Proxy: both{p.proxy, p.before, p.boxes}, Boxes: p.connected, Forget: []func(policy.BoxID){p.dns.Forget, p.minter.Remove},
	}
	o.policies, err = rules.New(rules.Config{Log: p.log, Store: p.store, Boxes: p.boxes, Shared: p.shared, Net: p.net, Trail: p.trail.Log(), Before: p.before})
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

// openUsage opens what callers do in boxes.
func (o *opening) openUsage(context.Context) error {
	p := o.parts
	held := state.Sandboxes{Launcher: p.launcher}
	o.authorities = box.NewAuthorities(p.store, p.minter, p.urlCA)
	provisioner, err := box.NewProvisioner(box.ProvisionerConfig{
		Log: p.log, Store: p.store, Shared: p.shared, Net: p.net, Sandboxes: held, Minter: p.minter, Authorities: o.authorities, URLs: o.publicURLs,
		Reach: p.reach, Roots: p.added, DNS: []netip.Addr{p.addrs.GatewayV4, p.addrs.GatewayV6},
	})
	if err != nil {
		return err
	}
	p.provisioner = provisioner
	o.usage, err = usage.New(usage.Config{
		Log: p.log, Store: p.store, Boxes: p.boxes, Sandboxes: held, Starter: provisioner, History: p.history, Room: p.holdings.Room, Metrics: p.metrics,
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

// openLife opens what makes and deletes boxes.
func (o *opening) openLife(context.Context) (err error) {
	p := o.parts
	o.settings = box.NewSettings(p.log, p.store, p.boxes, p.shared)
	o.snapshots = box.NewSnapshots(p.log, p.boxes, p.shelf, p.holdings)
	o.git = usage.NewGit(o.usage, o.settings)
	o.scheduled, err = schedule.New(schedule.Config{
		Log: p.log, Store: p.store, Boxes: p.boxes, Commands: o.usage, History: p.history, Authorities: o.authorities, Proxy: p.proxy, Roots: p.roots, Holdings: p.holdings,
	})
	if err != nil {
		return err
	}
	o.lifecycle, err = box.New(box.Config{
		Config: p.cfg, Addresses: p.addrs, Provisioner: p.provisioner, Audit: p.audit, Firewall: p.firewall, Boxes: p.boxes, Visitors: p.ingress, Usage: o.usage,
		Meter: p.meter, Quota: o.quota, Settings: o.settings, Snapshots: o.snapshots, Schedules: o.scheduled, History: p.history, Holdings: p.holdings,
	})
	return err
}

// openRecords opens what shows decisions, changes, secrets and holes.
func (o *opening) openRecords(context.Context) (err error) {
	p := o.parts
	o.events = records.NewDecisions(p.audit, p.past, p.kept)
	o.auditTrail = p.trail
	o.sources = keys.NewSecrets(p.log, p.secrets, p.tokens)
	o.selfTests, err = box.NewSelfTests(box.SelfTestsConfig{
		Config: p.cfg, Addresses: p.addrs, Ports: p.listeners.ClosedToBoxes, Explicit: listen.ExplicitPort, Audit: p.audit, Boxes: p.boxes,
		Sandboxes: state.Sandboxes{Launcher: p.launcher},
	})
	return err
}

// keysChanged makes the predecessor, and a process that takes the place of this one, look anew at the keys of open requests.
func (o *opening) keysChanged() {
	o.turn.forgetKeys()
	o.parts.before.Tell(handover.Message{Kind: handover.Keys})
}

// holdSecrets says where secrets are in use, where a predecessor may use some as well.
func (p *parts) holdSecrets(context.Context) error {
	if p.before != nil {
		p.secrets.SetHolders(both{p.proxy, p.before, p.boxes})
	}
	return nil
}

// protect puts the protected ranges in force before any box is known.
func (o *opening) protect(ctx context.Context) error { return o.protection.Update(ctx) }

// Recover picks up the boxes of an earlier run. Call it once, after [Open] and before [Host.Serve]. After an error, close
// the gateway. A panic is an error.
func (h *Host) Recover(ctx context.Context) error {
	err := change.Contain(h.parts.log, func() error {
		if err := h.lifecycle.Recover(ctx); err != nil {
			return err
		}
		if err := h.scheduled.Load(); err != nil {
			return fmt.Errorf("reading schedules: %w", err)
		}
		return fault.At(ctx, "start: boxes known")
	})
	h.health.recovered.Store(err == nil)
	return err
}

// Close releases what [Open] opened. Rules, links and boxes stay as they are. Call it once, after Serve has returned.
func (h *Host) Close() error {
	h.usage.Close()
	if h.succession.lent {
		h.parts.flushExports() // the rest is another process's
		return nil
	}
	return change.Contain(h.parts.log, h.parts.close)
}
