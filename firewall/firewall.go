package firewall

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"boxgate/firewall/dhcp"
	"boxgate/firewall/flow"
	"boxgate/firewall/link"
	"boxgate/firewall/nft"
	"boxgate/firewall/report"
	"boxgate/firewall/route"
	"boxgate/firewall/watch"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Firewall is the kernel side of the gateway in one network namespace. Safe for concurrent use.
type Firewall struct {
	cfg     Config
	ns      netns.NsHandle  // the namespace Open was called in; every socket and sysctl uses it
	nl      *netlink.Handle // routes, rules and links of that namespace
	routing *route.Host
	links   *link.Links
	flows   *flow.Cutter
	reports *report.Reports // of refusals and forwarded flows; nil: no recorder is configured
	watcher *watch.Watcher  // detects changes by other programs

	removals removals

	mu        sync.Mutex // guards the following, and serializes changes of the kernel's state
	table     *nft.Table
	boxes     roster
	leftover  map[string]nft.Entry    // by interface: boxes of an earlier run that have not been added again yet
	removing  map[string]policy.BoxID // by interface: boxes whose removal has failed; the ID is empty for a box of an earlier run
	retry     removalRetry
	suspended map[policy.BoxID]bool // boxes whose interface is down until Resume, including those that are not attached yet
	guests    map[policy.BoxID]*dhcp.Server
	taps      map[policy.BoxID]func() // ends followTap
	idle      idle
	closed    bool
}

// box is an attached box.
type box struct {
	Attachment
	nft.Entry
	place link.Place
	plan  policy.KernelPlan
	noted bool // all its forwarded connections have been noted, see idle
	gone  bool // its network namespace is gone, and that has been logged

	repairs repairs
}

// Open prepares the network namespace of the calling thread: forwarding, the gateway's addresses on lo, routing for the
// transparent proxy, and the static part of the table. Boxes of an earlier run stay as they are until they are added again,
// or removed by [Firewall.Prune]. If a pool overlaps a network of the host, Open fails without any change, see [OverlappingPools].
// The context only bounds Open itself.
func Open(ctx context.Context, cfg Config) (*Firewall, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("firewall: %w", err)
	}
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("firewall: network namespace: %w", err)
	}
	if err := cfg.chooseLists(ns); err != nil {
		_ = ns.Close()
		return nil, fmt.Errorf("firewall: %w", err)
	}
	f := &Firewall{cfg: cfg, ns: ns, flows: flow.New(ns), table: nft.New(ns, cfg.table()),
		leftover: map[string]nft.Entry{}, removing: map[string]policy.BoxID{}, suspended: map[policy.BoxID]bool{}, retry: removalRetry{first: firstRemoval}, idle: idle{wait: inFlight}}
	if err := f.open(ctx); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("firewall: %w", err)
	}
	return f, nil
}

// open sets up the table and the routing gate before it enables forwarding.
func (f *Firewall) open(ctx context.Context) error {
	var err error
	if f.nl, err = netlink.NewHandleAt(f.ns); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	f.routing = route.New(f.ns, f.nl, f.cfg.addresses())
	if err := f.routing.CheckPools(); err != nil {
		return err
	}
	if f.links, err = link.New(f.ns, f.nl, f.cfg.addresses()); err != nil {
		return err
	}
	f.links.Receive = f.cfg.ReceiveRate
	var keep bool
	if f.leftover, keep, err = f.table.Read(); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return f.install(keep) },
		func() error { f.findOwners(); f.cutLookups(); return nil },
		func() error { f.table.Collect(); return nil },
		func() error { return fault.At(ctx, "open: table written") },
		f.routing.SetAddresses,
		func() error { return fault.At(ctx, "open: addresses set") },
		f.routing.Install,
		func() error { return fault.At(ctx, "open: routing set") },
		func() error { return f.routing.AwaitAddresses(ctx) },
		f.routing.SetForwarding,
		func() error { return fault.At(ctx, "open: forwarding on") },
		f.startReports,
		f.openWatch,
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// install writes the static part of the table. A table that cannot be kept is replaced; the new one contains no boxes.
func (f *Firewall) install(keep bool) error {
	err := f.table.Install(keep)
	if err == nil && !keep {
		f.leftover = map[string]nft.Entry{}
		f.idle.tables++
		for _, b := range f.boxes.byID {
			b.Reset()
			b.noted = false
		}
	}
	return err
}

// startReports opens the reports of the kernel. Without a recorder they are not read, which loses only events. Reading
// begins when the boxes of an earlier run are known.
func (f *Firewall) startReports() error {
	if f.cfg.Audit == nil {
		return nil
	}
	counters, err := f.table.Counters()
	if err != nil {
		return err
	}
	if f.reports, err = report.Open(f.ns, report.Config{LogGroup: f.cfg.LogGroup, Counters: counters, Explain: f.cfg.Explain,
		Names: f.cfg.Names, Audit: f.cfg.Audit, Log: f.cfg.Log}); err != nil {
		return err
	}
	if len(f.leftover) == 0 {
		f.reports.Start()
	}
	return nil
}

func (f *Firewall) openWatch() (err error) {
	f.watcher, err = watch.Open(f.ns, f.table, f.routing, f.links, repairer{f}, f.cfg.Log)
	return err
}

// Watch detects when other programs change the table, the routing, the gateway's addresses, forwarding or the boxes' links,
// and restores them, until ctx ends. Until then boxes are closed: the routing gate only passes packets that the table has
// judged, and the table only those from a box's own link. Failed repairs are retried. Watch returns an error when it can no
// longer see changes. Call it once.
func (f *Firewall) Watch(ctx context.Context) error { return f.watcher.Run(ctx) }

// Close stops reporting and closes sockets. Rules, routes and links stay active.
func (f *Firewall) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	f.idle.stop()
	if f.retry.timer != nil {
		f.retry.timer.Stop()
	}
	err := f.dismissGuests()
	if f.watcher != nil {
		f.watcher.Close()
	}
	if f.reports != nil {
		err = errors.Join(err, f.reports.Close())
	}
	if f.nl != nil {
		f.nl.Close()
	}
	err = errors.Join(err, f.table.Close())
	if f.links != nil {
		err = errors.Join(err, f.links.Close())
	}
	return errors.Join(err, f.flows.Close(), f.ns.Close())
}

// Uninstall removes everything that Open and AddBox made, the links of all boxes first. The sysctls are kept, since other
// programs may rely on them. The Firewall is closed afterwards. Once begun, Uninstall runs to completion.
func (f *Firewall) Uninstall(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return errors.New("firewall: closed")
	}
	f.watcher.Close() // otherwise it would undo the following removal
	err := errors.Join(f.links.DeleteOthers(nil), f.routing.Uninstall(), f.routing.UnsetAddresses())
	if err == nil {
		err = f.table.Remove()
	}
	f.boxes = roster{}
	f.mu.Unlock()
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("firewall: uninstall: %w", err)
	}
	return nil
}
