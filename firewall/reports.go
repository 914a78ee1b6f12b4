package firewall

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"github.com/ti-mo/netfilter"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/policy"
)

// reports reads what the kernel tells about refused packets and forwarded connections, and records events.
type reports struct {
	cfg      *Config
	refusals *netfilter.Conn
	flows    *netlink.Conn
	table    *conntrack.Conn // reads the connections that there are
	counters *nftables.Conn  // reads the counters of refused packets
	begun    sync.Once
	done     chan struct{}
	running  sync.WaitGroup

	refusalsMissed atomic.Bool   // since the counters were read last
	flowsMissed    atomic.Bool   // since the table was read last
	flowsDropped   uint32        // of the flows socket, as counted by the kernel; for everySecond alone
	lastRead       time.Time     // of the table; for everySecond alone
	started        atomic.Uint64 // TCP connections begun since the table was read last

	mu      sync.Mutex // guards what follows
	byIndex map[int]*tracked
	byFlow  map[flowOwner]*tracked
	gone    []*tracked // removed boxes that late events may still be about, the oldest first
	counts  map[countKey]*count
}

// tracked is what events need to know of a box.
type tracked struct {
	id      policy.BoxID
	link    string
	index   int
	addrs   []netip.Addr
	mark    uint32
	version uint64
	removed time.Time
}

// flowOwner is how a forwarded connection tells its box.
type flowOwner struct {
	addr netip.Addr
	mark uint32 // without flowForwarded
}

// goneMemory is how long events of a removed box are still taken: the kernel tells of the end of its connections when the
// box is gone already.
const goneMemory = 10 * time.Second

// reportBuffer is how many bytes of reports the kernel may hold for us. It takes the beginnings of as many connections as
// a box may have by default.
const reportBuffer = 16 << 20

// startReports opens the kernel's two streams. Without a recorder nothing is read, and nothing is lost but events. Reading
// begins once the boxes of an earlier run are known: until then the kernel holds what it has to tell of them.
func (f *Firewall) startReports() error {
	if f.cfg.Audit == nil {
		return nil
	}
	r := &reports{cfg: &f.cfg, done: make(chan struct{}), byIndex: map[int]*tracked{},
		byFlow: map[flowOwner]*tracked{}, counts: map[countKey]*count{}}
	f.reports = r
	if err := r.open(int(f.ns)); err != nil {
		return err
	}
	var err error
	if r.counters, err = f.dial(); err != nil {
		return err
	}
	if len(f.leftover) == 0 {
		r.begin()
	}
	return nil
}

func (r *reports) open(ns int) (err error) {
	if r.refusals, err = netfilter.Dial(&netlink.Config{NetNS: ns}); err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	if err = errors.Join(r.refusals.SetReadBuffer(reportBuffer), bindLogGroup(r.refusals, r.cfg.LogGroup)); err != nil {
		return fmt.Errorf("kernel log group %d: %w", r.cfg.LogGroup, err)
	}
	if r.table, err = conntrack.Dial(&netlink.Config{NetNS: ns}); err != nil {
		return fmt.Errorf("connection table: %w", err)
	}
	if r.flows, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns}); err != nil {
		return fmt.Errorf("connection events: %w", err)
	}
	err = errors.Join(r.table.SetReadBuffer(socketBuffer), r.flows.SetReadBuffer(reportBuffer),
		r.flows.JoinGroup(uint32(netfilter.GroupCTNew)), r.flows.JoinGroup(uint32(netfilter.GroupCTDestroy)))
	if err != nil {
		return fmt.Errorf("connection events: %w", err)
	}
	return nil
}

// begin starts the readers. Whoever calls it first also has the table read, for what began while nobody listened.
func (r *reports) begin() {
	r.begun.Do(func() {
		select {
		case <-r.done:
			return
		default:
		}
		r.running.Add(3)
		go r.read(r.refusals, r.refused, &r.refusalsMissed)
		go r.read(r.flows, r.flow, &r.flowsMissed)
		go r.everySecond()
	})
}

// read hands each message to handle until the socket is closed. When the kernel had to drop messages because they came
// too fast, reading goes on, and everySecond finds out what was missed.
func (r *reports) read(c interface {
	Receive() ([]netlink.Message, error)
}, handle func(netlink.Message), missed *atomic.Bool) {
	defer r.running.Done()
	for {
		messages, err := c.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			missed.Store(true)
			continue
		}
		if errors.Is(err, unix.EINTR) {
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

// everySecond finds out what the streams did not tell.
func (r *reports) everySecond() {
	defer r.running.Done()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-tick.C:
		}
		r.countSuppressed()
		r.findFlows()
		r.dropGone(time.Now())
	}
}

func (r *reports) close() error {
	close(r.done)
	var errs []error
	if r.refusals != nil {
		errs = append(errs, r.refusals.Close())
	}
	if r.flows != nil {
		errs = append(errs, r.flows.Close())
	}
	r.begun.Do(func() {}) // nothing begins any more
	r.running.Wait()
	if r.table != nil {
		errs = append(errs, r.table.Close())
	}
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
		r.byFlow[flowOwner{a, t.mark}] = t
	}
}

// untrackBox has a box forgotten, once the events are in that are still on their way.
func (f *Firewall) untrackBox(id policy.BoxID) {
	if f.reports == nil {
		return
	}
	r := f.reports
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.byIndex {
		if t.id == id && t.removed.IsZero() {
			t.removed = time.Now()
			r.gone = append(r.gone, t)
		}
	}
}

func (r *reports) dropGone(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.gone) > 0 && now.Sub(r.gone[0].removed) > goneMemory {
		t := r.gone[0]
		r.drop(t)
		for _, reason := range refusals {
			if k := (countKey{t.link, reason}); r.counts[k] != nil && r.counts[k].box == t {
				delete(r.counts, k)
			}
		}
		r.gone = r.gone[1:]
	}
}

// forget needs mu.
func (r *reports) forget(id policy.BoxID) {
	for _, t := range r.byIndex {
		if t.id == id {
			r.drop(t)
			return
		}
	}
}

// drop needs mu. What another box has taken over in the meantime stays with that.
func (r *reports) drop(t *tracked) {
	if r.byIndex[t.index] == t {
		delete(r.byIndex, t.index)
	}
	for _, a := range t.addrs {
		if owner := (flowOwner{a, t.mark}); r.byFlow[owner] == t {
			delete(r.byFlow, owner)
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
