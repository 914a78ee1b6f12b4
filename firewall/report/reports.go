// Package report turns the kernel's reports about refused packets and forwarded connections into audit events.
package report

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"github.com/vishvananda/netns"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/firewall/flow"
	"boxgate/firewall/nft"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Reports reads the kernel's reports about refused packets and forwarded connections, and records events.
type Reports struct {
	cfg       Config
	refusals  *netfilter.Conn
	flows     *flowSocket
	table     *flow.Table // of the existing connections
	startOnce sync.Once
	done      chan struct{}
	running   sync.WaitGroup

	refusalsMissed atomic.Bool   // since the counters were last read
	flowsMissed    atomic.Bool   // since the table was last read
	flowsDropped   uint32        // of the flows socket, as counted by the kernel; only for everySecond
	lastRead       time.Time     // of the table; only for everySecond
	started        atomic.Uint64 // TCP connections that began since the table was last read

	mu      sync.Mutex                // guards the following
	byID    map[policy.BoxID]*tracked // without removed ones
	byIndex map[int]*tracked
	byFlow  map[flow.Owner]*tracked
	removed []*tracked // removed boxes that late events may be about, oldest first
	counts  map[countKey]*count
}

// Config configures Reports.
type Config struct {
	LogGroup uint16                               // NFLOG group for refused packets
	Counters *nft.Counters                        // of refused packets; closed together with the reports
	Explain  func(policy.Request) policy.Decision // the policy's decision, for rule and reason; may be nil
	Names    Names                                // may be nil
	Audit    Recorder
	Log      *zap.Logger
}

// Names returns the names that DNS resolved to an address for a box, the latest first.
type Names func(policy.BoxID, netip.Addr) []name.Name

// Recorder receives events. Record must not block.
type Recorder interface{ Record(audit.Event) }

// Box is the data about a box that events need.
type Box struct {
	ID      policy.BoxID
	Link    string // its interface on the host
	Index   int    // of Link
	Addrs   []netip.Addr
	Mark    uint32 // of its connections
	Version uint64 // of its policy
}

// tracked is a box that events may be about.
type tracked struct {
	Box
	removed time.Time
}

// removedRetention is how long events of a removed box are accepted: the kernel reports the end of its connections after the box
// is gone.
const removedRetention = 10 * time.Second

// reportBuffer is how many bytes of reports the kernel may buffer for us: enough for the beginnings of as many connections
// as a box may have by default.
const reportBuffer = 16 << 20

// Open opens the kernel's two streams. Reading starts with [Reports.Start]; until then the kernel buffers the messages.
func Open(ns netns.NsHandle, cfg Config) (*Reports, error) {
	r := &Reports{cfg: cfg, table: flow.NewTable(ns), done: make(chan struct{}), byID: map[policy.BoxID]*tracked{}, byIndex: map[int]*tracked{},
		byFlow: map[flow.Owner]*tracked{}, counts: map[countKey]*count{}}
	if err := r.open(int(ns)); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Reports) open(ns int) (err error) {
	if r.refusals, err = netfilter.Dial(&netlink.Config{NetNS: ns}); err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	if err = errors.Join(r.refusals.SetReadBuffer(reportBuffer), awaitLogGroup(r.refusals, r.cfg.LogGroup)); err != nil {
		return fmt.Errorf("kernel log group %d: %w", r.cfg.LogGroup, err)
	}
	if r.flows, err = openFlows(ns); err != nil {
		return fmt.Errorf("connection events: %w", err)
	}
	if err = r.SetFlowBuffer(reportBuffer); err != nil {
		return fmt.Errorf("connection events: %w", err)
	}
	return nil
}

// SetFlowBuffer sets how many bytes of reports about connections the kernel may buffer for us.
func (r *Reports) SetFlowBuffer(bytes int) error { return r.flows.setBuffer(bytes) }

// Start starts the readers. Later calls have no effect.
func (r *Reports) Start() {
	r.startOnce.Do(func() {
		select {
		case <-r.done:
			return
		default:
		}
		r.running.Add(3)
		go r.readRefusals()
		go r.readFlows()
		go r.everySecond()
	})
}

// readRefusals handles reports of refused packets until the socket is closed. When the kernel drops messages because they
// come too fast, reading continues, and everySecond makes up for the loss.
func (r *Reports) readRefusals() {
	defer r.running.Done()
	for {
		messages, err := r.refusals.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			r.refusalsMissed.Store(true)
			continue
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			r.logStop(err)
			return
		}
		for _, m := range messages {
			r.recordRefusal(m)
		}
	}
}

// readFlows does the same for connections.
func (r *Reports) readFlows() {
	defer r.running.Done()
	if err := r.flows.run(r.recordFlowEvent, func() { r.flowsMissed.Store(true) }); err != nil {
		r.logStop(err)
	}
}

// logStop logs why a reader has ended, unless Close ended it.
func (r *Reports) logStop(err error) {
	select {
	case <-r.done:
	default:
		r.cfg.Log.Error("firewall: reading the kernel's reports stopped", zap.Error(err))
	}
}

// everySecond makes up for reports that the streams lost.
func (r *Reports) everySecond() {
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
		r.dropRemoved(time.Now())
	}
}

func (r *Reports) Close() error {
	close(r.done)
	var errs []error
	if r.refusals != nil {
		errs = append(errs, r.refusals.Close())
	}
	if r.flows != nil {
		r.flows.close()
	}
	r.startOnce.Do(func() {}) // the readers must not start after this
	r.running.Wait()
	if r.flows != nil {
		r.flows.release()
	}
	errs = append(errs, r.table.Close())
	if r.cfg.Counters != nil {
		errs = append(errs, r.cfg.Counters.Close())
	}
	return errors.Join(errs...)
}

// Track adds a box, or updates its plan.
func (r *Reports) Track(b Box) {
	t := &tracked{Box: b}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeNow(b.ID)
	r.byID[b.ID], r.byIndex[t.Index] = t, t
	for _, a := range t.Addrs {
		r.byFlow[flow.Owner{Mark: t.Mark, Addr: a}] = t
	}
}

// Untrack removes a box after its outstanding events have arrived.
func (r *Reports) Untrack(id policy.BoxID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.byID[id]; t != nil {
		delete(r.byID, id)
		t.removed = time.Now()
		r.removed = append(r.removed, t)
	}
}

func (r *Reports) dropRemoved(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.removed) > 0 && now.Sub(r.removed[0].removed) > removedRetention {
		t := r.removed[0]
		r.removeFromIndices(t)
		for _, reason := range nft.Refusals {
			if k := (countKey{t.Link, reason}); r.counts[k] != nil && r.counts[k].box == t {
				delete(r.counts, k)
			}
		}
		r.removed = r.removed[1:]
	}
}

// removeNow removes a box immediately. The caller holds mu.
func (r *Reports) removeNow(id policy.BoxID) {
	if t := r.byID[id]; t != nil {
		r.removeFromIndices(t)
		delete(r.byID, id)
	}
}

// removeFromIndices removes a box from the indices, except entries that another box has taken over. The caller holds mu.
func (r *Reports) removeFromIndices(t *tracked) {
	if r.byIndex[t.Index] == t {
		delete(r.byIndex, t.Index)
	}
	for _, a := range t.Addrs {
		if owner := (flow.Owner{Mark: t.Mark, Addr: a}); r.byFlow[owner] == t {
			delete(r.byFlow, owner)
		}
	}
}

// explain returns the policy's decision about a destination; false without a policy.
func (r *Reports) explain(e audit.Event) (policy.Decision, bool) {
	if r.cfg.Explain == nil {
		return policy.Decision{}, false
	}
	return r.cfg.Explain(policy.Request{Stage: policy.StageKernel, Box: e.Box, Addr: e.Addr, Port: e.Port,
		Protocol: e.Protocol}), true
}

func (t *tracked) event() audit.Event {
	e := audit.Event{Time: time.Now(), Stage: policy.StageKernel}
	if t != nil {
		e.Box, e.Version = t.ID, t.Version
	}
	return e
}
