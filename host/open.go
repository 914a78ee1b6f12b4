package host

import (
	"boxgate/host/box"

	"boxgate/host/usage"

	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/api/history"
	"boxgate/audit/lines"
	"boxgate/certs"
	"boxgate/config"
	"boxgate/host/apart"
	"boxgate/host/change"
	"boxgate/host/enforce"
	"boxgate/host/handover"
	"boxgate/host/keyless"
	"boxgate/host/keys"
	"boxgate/host/reach"
	"boxgate/host/rules"
	"boxgate/host/schedule"
	"boxgate/host/share"
	"boxgate/host/state"
	"boxgate/host/urls"
	"boxgate/internal/fault"
	"boxgate/policy"
	quotas "boxgate/quota"
)

// Options say what a gateway is made of.
type Options struct {
	Config    config.Config
	Addresses config.Addresses
	Listeners *Listeners // the caller closes them
	Apart     *apart.Net // where the boxes' links and rules are, as for Listeners; nil: in the gateway's own namespace
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

// open is Open but for panics.
func open(ctx context.Context, o Options) (*Host, error) {
	p := &parts{
		cfg: o.Config, log: o.Log, lines: o.Decisions, addrs: o.Addresses, listeners: o.Listeners, apart: o.Apart, metrics: prometheus.NewRegistry(),
		minter: &certs.Minter{}, boxes: &state.Table{Limits: o.Config.Limits.OfBoxes()}, connected: &enforce.Registry{}, reach: &reach.Boxes{},
	}
	p.history = history.New(p.boxes.Exist)
	var err error
	if p.shares, err = share.RaiseDescriptors(); err != nil {
		return nil, err
	}
	shares := share.MemoryOf(o.Config)
	shares.Hold()
	p.memory = shares.Budget()
	p.quotas = quotas.New(quotas.Config{Defaults: p.cfg.Quotas.Limits(), Totals: share.Totals(p.shares, shares)})
	p.keyed = keyless.NewKeyed(p.quotas)
	p.takesOver, p.before = o.Before != nil, o.Before
	h := &Host{
		parts: p, noWatch: o.NoWatch, ready: o.Ready, text: o.Text, before: o.Before, control: o.Control, turn: &adminTurn{}, succession: newSuccession(),
		serving: &serving{log: p.log, within: acceptTime},
	}
	// Nobody visits before the gateway serves.
	p.visits = usage.NewVisits(p.boxes, p.reach, func(ctx context.Context, id policy.BoxID) error { return h.usage.Wake(ctx, id) })
	if h.control == nil {
		h.control = func(context.Context, string) (any, error) {
			return nil, errors.New("this gateway takes no requests of commands")
		}
	}
	steps := []func(context.Context) error{
		p.openStore, func(ctx context.Context) error { return fault.At(ctx, "start: store open") },
		p.openTrail, p.openSecrets, p.openAudit, p.openEgress, func(ctx context.Context) error { return fault.At(ctx, "start: DNS and proxy made") },
		p.openIngress, p.openLauncher, func(ctx context.Context) error { return fault.At(ctx, "start: launcher open") },
		p.openFirewall, h.holdSecrets, h.openMeter, h.openLimitMetrics, h.openCapacityMetrics, h.openKeys, h.openURLs, h.openRules, h.openUsage, h.openLife, h.openRecords, h.protect, func(ctx context.Context) error { return fault.At(ctx, "start: kernel rules in force") },
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	return h, nil
}

// kernel returns the rules of boxes in the kernel.
func (p *parts) kernel() enforce.Kernel {
	if p.apart != nil {
		return unforwarded{p.firewall}
	}
	return p.firewall
}

// openKeys opens the API keys and what they hold.
func (h *Host) openKeys(context.Context) (err error) {
	p := h.parts
	if p.holdings, err = keys.NewHoldings(keys.HoldingsConfig{Log: p.log, Book: p.quotas, Boxes: p.boxes, Store: p.store, Layer: p.launcher.LayerSize, Space: p.launcher.Room}); err != nil {
		return err
	}
	if h.keys, err = keys.New(keys.Config{Log: p.log, Store: p.store, Quotas: p.quotas, Changed: h.keysChanged}); err != nil {
		return err
	}
	return h.keys.Register(p.metrics)
}

// openURLs opens the public URLs.
func (h *Host) openURLs(context.Context) (err error) {
	p := h.parts
	h.publicURLs, err = urls.New(urls.Config{
		Ingress: p.cfg.Ingress, HTTPS: p.listeners.portOfHTTPS(), HTTP: p.listeners.portOfHTTP(), Log: p.log, Store: p.store, Visitors: p.ingress, Boxes: p.boxes,
		Table: p.urlTable, Reach: p.reach, Domains: p.domains, Holdings: p.holdings, Before: h.before,
	})
	return err
}

// openRules opens what puts policies in force.
func (h *Host) openRules(context.Context) error {
	p := h.parts
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
		Kernel: p.kernel(), Proxy: both{p.proxy, h.before, p.boxes}, Boxes: p.connected, Forget: []func(policy.BoxID){p.dns.Forget, p.minter.Remove},
	}
	h.policies, err = rules.New(rules.Config{Log: p.log, Store: p.store, Boxes: p.boxes, Shared: p.shared, Net: p.net, Trail: p.trail.trail, Before: h.before})
	if err != nil {
		return err
	}
	h.quota, err = rules.NewQuota(rules.QuotaConfig{Log: p.log, Meter: p.meter, Boxes: p.boxes, Rules: h.policies, Visitors: p.ingress, Before: h.before})
	if err != nil {
		return err
	}
	h.protection = rules.NewProtection(p.log, p.addrs, h.policies)
	return nil
}

// openUsage opens what callers do in boxes.
func (h *Host) openUsage(context.Context) error {
	p := h.parts
	held := state.Sandboxes{Launcher: p.launcher}
	h.authorities = box.NewAuthorities(p.store, p.minter, p.urlCA)
	provisioner, err := box.NewProvisioner(box.ProvisionerConfig{
		Log: p.log, Store: p.store, Shared: p.shared, Net: p.net, Sandboxes: held, Minter: p.minter, Authorities: h.authorities, URLs: h.publicURLs,
		Reach: p.reach, Roots: p.added, DNS: []netip.Addr{p.addrs.GatewayV4, p.addrs.GatewayV6},
	})
	if err != nil {
		return err
	}
	p.provisioner = provisioner
	h.usage, err = usage.New(usage.Config{
		Log: p.log, Store: p.store, Boxes: p.boxes, Sandboxes: held, Starter: provisioner, History: p.history, Room: p.holdings.Room, Metrics: p.metrics,
	})
	if err != nil {
		return err
	}
	h.sleeper, err = usage.NewSleeper(usage.SleeperConfig{
		After: p.cfg.Launcher.IdleTimeout, Log: p.log, Usage: h.usage, Audit: p.audit, Before: h.before, Traffic: p.firewall.Traffic, Passing: p.proxy.Passing,
	})
	h.room = usage.NewRoomKeeper(h.usage, p.launcher.Writes, p.launcher.Reserve())
	return err
}

// openLife opens what makes and deletes boxes.
func (h *Host) openLife(context.Context) (err error) {
	p := h.parts
	h.settings = box.NewSettings(p.log, p.store, p.boxes, p.shared)
	h.snapshotHost = box.NewSnapshots(p.log, p.boxes, p.shelf, p.holdings)
	h.git = usage.NewGit(h.usage, h.settings)
	h.scheduled, err = schedule.New(schedule.Config{
		Log: p.log, Store: p.store, Boxes: p.boxes, Commands: h.usage, History: p.history, Authorities: h.authorities, Proxy: p.proxy, Roots: p.roots, Holdings: p.holdings,
	})
	if err != nil {
		return err
	}
	h.lifecycle, err = box.New(box.Config{
		Config: p.cfg, Addresses: p.addrs, Provisioner: p.provisioner, Audit: p.audit, Firewall: p.firewall, Boxes: p.boxes, Visitors: p.ingress, Usage: h.usage,
		Meter: p.meter, Quota: h.quota, Settings: h.settings, Snapshots: h.snapshotHost, Schedules: h.scheduled, History: p.history, Holdings: p.holdings,
	})
	return err
}

// openRecords opens what shows decisions, changes, secrets and holes.
func (h *Host) openRecords(context.Context) error {
	p := h.parts
	h.events = &events{audit: p.audit, past: p.past, kept: p.kept, turns: newSearches()}
	h.auditTrail = p.trail
	h.sources = &sources{log: p.log, secrets: p.secrets, tokens: p.tokens}
	h.selfTests = &selfTests{
		cfg: p.cfg, addrs: p.addrs, listeners: p.listeners, audit: p.audit, boxes: p.boxes, sandboxes: state.Sandboxes{Launcher: p.launcher},
	}
	return nil
}

// keysChanged makes the predecessor, and a process that takes the place of this one, look anew at the keys of open requests.
func (h *Host) keysChanged() {
	h.turn.forgetKeys()
	h.before.Tell(handover.Message{Kind: handover.Keys})
}

// holdSecrets says where secrets are in use, where a predecessor may use some as well.
func (h *Host) holdSecrets(context.Context) error {
	if h.before != nil {
		h.parts.secrets.SetHolders(both{h.parts.proxy, h.before, h.parts.boxes})
	}
	return nil
}

// protect puts the protected ranges in force before any box is known.
func (h *Host) protect(ctx context.Context) error { return h.protection.Update(ctx) }

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
	h.recovered.Store(err == nil)
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
