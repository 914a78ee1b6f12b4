package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
)

// reports reads what the kernel tells about refused packets and forwarded connections, and records events.
type reports struct {
	cfg      *Config
	conns    []*netfilter.Conn
	counters *nftables.Conn // reads the counters of refused packets
	done     chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex // guards what follows
	byIndex map[int]*tracked
	byAddr  map[netip.Addr]*tracked
	counts  map[countKey]*count
	tallies map[tallyKey]*tally
}

// tracked is what events need to know of a box.
type tracked struct {
	id      policy.BoxID
	link    string
	index   int
	addrs   []netip.Addr
	mark    uint32
	version uint64
}

// startReports opens the kernel's two streams. Without a recorder nothing is read, and nothing is lost but events.
func (f *Firewall) startReports() error {
	if f.cfg.Audit == nil {
		return nil
	}
	r := &reports{cfg: &f.cfg, done: make(chan struct{}), byIndex: map[int]*tracked{},
		byAddr: map[netip.Addr]*tracked{}, counts: map[countKey]*count{}, tallies: map[tallyKey]*tally{}}
	f.reports = r
	refused, err := r.dial(int(f.ns))
	if err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	if err := bindLogGroup(refused, f.cfg.LogGroup); err != nil {
		return fmt.Errorf("kernel log group %d: %w", f.cfg.LogGroup, err)
	}
	flows, err := r.dial(int(f.ns))
	if err != nil {
		return fmt.Errorf("connection events: %w", err)
	}
	if err := flows.JoinGroups([]netfilter.NetlinkGroup{netfilter.GroupCTNew, netfilter.GroupCTDestroy}); err != nil {
		return fmt.Errorf("connection events: %w", err)
	}
	if r.counters, err = f.dial(); err != nil {
		return err
	}
	r.running.Add(3)
	go r.read(refused, r.refused)
	go r.read(flows, r.flow)
	go r.everySecond()
	return nil
}

func (r *reports) dial(ns int) (*netfilter.Conn, error) {
	c, err := netfilter.Dial(&netlink.Config{NetNS: ns})
	if err != nil {
		return nil, err
	}
	r.conns = append(r.conns, c)
	return c, c.SetReadBuffer(4 << 20)
}

// read hands each message to handle until the socket is closed. When the kernel had to drop messages because they came
// too fast, reading goes on.
func (r *reports) read(c *netfilter.Conn, handle func(netlink.Message)) {
	defer r.running.Done()
	for {
		messages, err := c.Receive()
		if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			select {
			case <-r.done:
			default:
				r.cfg.Log.Error("firewall: reading the kernel's reports stopped", zap.Error(err))
			}
			return
		}
		for _, m := range messages {
			handle(m)
		}
	}
}

// everySecond records the events that stand for several.
func (r *reports) everySecond() {
	defer r.running.Done()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-r.done:
			r.endSecond()
			return
		case <-tick.C:
		}
		r.countSuppressed()
		r.endSecond()
	}
}

func (r *reports) close() error {
	close(r.done)
	var errs []error
	for _, c := range r.conns {
		errs = append(errs, c.Close())
	}
	r.running.Wait()
	if r.counters != nil {
		errs = append(errs, r.counters.CloseLasting())
	}
	return errors.Join(errs...)
}

// trackBox tells the readers of a box, or of its new plan. f.mu is held.
func (f *Firewall) trackBox(b *box) {
	if f.reports == nil {
		return
	}
	r := f.reports
	t := &tracked{id: b.Box, link: b.link, index: b.index, addrs: b.sources, mark: b.mark, version: b.plan.Version}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(b.Box)
	r.byIndex[t.index] = t
	for _, a := range t.addrs {
		r.byAddr[a] = t
	}
}

func (f *Firewall) untrackBox(id policy.BoxID) {
	if f.reports == nil {
		return
	}
	f.reports.mu.Lock()
	defer f.reports.mu.Unlock()
	f.reports.forget(id)
}

// forget needs mu.
func (r *reports) forget(id policy.BoxID) {
	for index, t := range r.byIndex {
		if t.id == id {
			delete(r.byIndex, index)
			for _, a := range t.addrs {
				delete(r.byAddr, a)
			}
			return
		}
	}
}

// explain asks the policy about a destination, if it can be asked.
func (r *reports) explain(e audit.Event) (policy.Decision, bool) {
	if r.cfg.Explain == nil {
		return policy.Decision{}, false
	}
	return r.cfg.Explain(policy.Request{Stage: policy.StageKernel, Box: e.Box, Addr: e.Addr, Port: e.Port,
		Protocol: e.Protocol}), true
}

func (t *tracked) event() audit.Event {
	e := audit.Event{Time: time.Now(), Stage: policy.StageKernel}
	if t != nil {
		e.Box, e.Version = t.id, t.version
	}
	return e
}
