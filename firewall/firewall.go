package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/google/nftables"
	"github.com/ti-mo/conntrack"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"boxgate/internal/fault"
	"boxgate/policy"
)

// Firewall is the kernel side of the gateway in one network namespace. Safe for concurrent use.
type Firewall struct {
	cfg     Config
	ns      netns.NsHandle  // the namespace Open was called in; every socket and sysctl uses it
	nl      *netlink.Handle // routes, rules and links of that namespace
	gate    int             // the program that marks what boxes send; -1: none
	reports *reports        // readers of refusals and forwarded flows
	watch   watch           // what other programs change

	flowsMu sync.Mutex      // guards flows
	flows   *conntrack.Conn // nil until it is needed

	portsMu sync.Mutex      // guards ports
	ports   map[uint32]bool // netlink ports of our connections to nftables, by which Watch knows our own changes

	mu       sync.Mutex // guards what follows, and serialises changes of the kernel's state
	boxes    map[policy.BoxID]*box
	leftover map[string]registration // by interface: boxes of an earlier run, not added again yet
	serial   uint64                  // the last one given to a version or to protected ranges
	shields  map[string]*shield      // the protected ranges that versions consult, as text
	garbage  []*version              // no element leads there; to be deleted
	nft      *nftables.Conn          // see connection
	closed   bool
}

// box is an attached box.
type box struct {
	Attachment
	registration
	index int // of the host-side interface
	plan  policy.KernelPlan
	gone  bool // its network namespace is, and that was said
	doubt bool // it is not known where its element leads: see settle

	repairs repairs
}

// Open prepares the network namespace of the calling thread: forwarding, the gateway's addresses on lo, routing for
// the transparent proxy, and the static part of the table. Boxes of an earlier run stay as they were until they are
// added again, or taken away by [Firewall.Prune]. It changes nothing if a pool overlaps what the host uses itself, see
// [CheckPool]. The context bounds nothing but Open itself.
func Open(ctx context.Context, cfg Config) (*Firewall, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("firewall: %w", err)
	}
	ns, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("firewall: network namespace: %w", err)
	}
	f := &Firewall{cfg: cfg, ns: ns, gate: -1, boxes: map[policy.BoxID]*box{}, shields: map[string]*shield{},
		leftover: map[string]registration{}}
	if err := f.open(ctx); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("firewall: %w", err)
	}
	return f, nil
}

// open closes before it opens: the table and the routing gate stand before forwarding is switched on.
func (f *Firewall) open(ctx context.Context) error {
	var err error
	if f.nl, err = netlink.NewHandleAt(f.ns); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	if err := f.checkPools(); err != nil {
		return err
	}
	if f.gate, err = loadGate(); err != nil {
		return fmt.Errorf("packet gate (eBPF): %w", err)
	}
	keep, err := f.readTable()
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return f.install(keep) },
		func() error { f.collect(); return nil },
		func() error { return fault.At(ctx, "open: table written") },
		f.setAddresses,
		func() error { return fault.At(ctx, "open: addresses set") },
		f.setRouting,
		func() error { return fault.At(ctx, "open: routing set") },
		f.awaitAddresses,
		f.setSysctls,
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

// readTable learns which boxes an earlier run left, and reports whether the table there can be kept.
func (f *Firewall) readTable() (keep bool, err error) {
	c, err := f.connection()
	if err != nil {
		return false, err
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	for _, t := range tables {
		if t.Name == tableName {
			return f.readBoxes(c)
		}
	}
	return false, nil
}

// Close stops reporting and gives sockets back. Rules, routes and links stay: boxes stay enforced.
func (f *Firewall) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	f.watch.close()
	var err error
	if f.reports != nil {
		err = f.reports.close()
	}
	if f.nl != nil {
		f.nl.Close()
	}
	if f.nft != nil {
		err = errors.Join(err, f.nft.CloseLasting())
	}
	if f.gate >= 0 {
		err = errors.Join(err, unix.Close(f.gate))
	}
	err = errors.Join(err, f.closeFlows())
	return errors.Join(err, f.ns.Close())
}

// Uninstall takes everything away that Open and AddBox made, the links of all boxes first. The sysctls stay as they
// are, since others may rely on them by now. The Firewall is closed afterwards. Once begun it goes to the end.
func (f *Firewall) Uninstall(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return errors.New("firewall: closed")
	}
	f.watch.close() // or it would put back what is taken away here
	err := errors.Join(f.deleteLinks(), f.unsetRouting(), f.unsetAddresses())
	if err == nil {
		err = f.transact(func(t *txn) {
			t.c.AddTable(t.table)
			t.c.DelTable(t.table)
		}, func(c *nftables.Conn) (bool, error) {
			_, err := c.ListTableOfFamily(tableName, nftables.TableFamilyINet)
			return err != nil, nil
		})
	}
	f.boxes = map[policy.BoxID]*box{}
	f.mu.Unlock()
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("firewall: uninstall: %w", err)
	}
	return nil
}

func addrOf(key []byte) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(key)
	return a, ok
}
