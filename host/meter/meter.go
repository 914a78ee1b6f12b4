package meter

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/policy"
	"boxgate/store"
)

// Interval is how often the counters of all boxes are read, and totals that have changed are stored.
const Interval = 15 * time.Second

// Usage is what a box has used since it was created.
type Usage struct {
	CPU        time.Duration
	Memory     int64 // now
	PeakMemory int64
	In, Out    uint64 // bytes at its interface, towards the box and from it
	OOMKills   uint64
	Disk       Disk
}

// Disk is what a box has written, when that was last looked at.
type Disk struct {
	Bytes, Inodes int64
	Whole         bool      // false: there is more than was looked at
	At            time.Time // zero: not yet
}

// Kernel reads the counters of boxes; those that have none are left out.
type Kernel interface {
	Read(boxes []policy.BoxID) (map[policy.BoxID]Reading, error)
	// ReadLinks is Read for the counters of interfaces alone, which cost little.
	ReadLinks(boxes []policy.BoxID) (map[policy.BoxID]Reading, error)
	// Disk looks at what a box has written, which may take long.
	Disk(ctx context.Context, box policy.BoxID) (Disk, error)
}

// Store keeps totals.
type Store interface {
	Usages() (map[policy.BoxID]store.Usage, error)
	SaveUsages(map[policy.BoxID]store.Usage) error
}

// Config says what a meter works with. All fields but Period must be set.
type Config struct {
	Period time.Duration // see [Meter.Transferred]

	Boxes  func() []policy.BoxID // all that there are
	Kernel Kernel
	Store  Store
	Log    *zap.Logger
}

// Meter adds up what boxes use. Safe for concurrent use.
type Meter struct {
	cfg     Config
	metrics *metrics

	reading sync.Mutex // serialises readings, so that none overtakes a newer one

	mu       sync.Mutex
	accounts map[policy.BoxID]*account // guarded by mu
}

// account is one box's.
type account struct {
	total  store.Usage
	stored store.Usage // what the store has
	read   time.Time   // when that was
	memory int64
	disk   Disk
	looked time.Duration // how long the last look at the disk took
	worked uint64        // CPU time of the box at that time
}

// Open returns a meter that goes on from the totals in the store.
func Open(cfg Config) (*Meter, error) {
	m := &Meter{cfg: cfg, accounts: map[policy.BoxID]*account{}}
	m.metrics = newMetrics(m)
	all, err := cfg.Store.Usages()
	for id, u := range all {
		m.accounts[id] = &account{total: u, stored: u}
	}
	return m, err
}

// Run reads the counters every [Interval] until ctx ends, and then once more.
func (m *Meter) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	var disks sync.WaitGroup
	disks.Go(func() { m.lookAtDisks(ctx) })
	defer disks.Wait()
	for {
		m.readAll()
		select {
		case <-ctx.Done():
			m.readAll()
			return
		case <-tick.C:
		}
	}
}

func (m *Meter) readAll() {
	boxes := m.cfg.Boxes()
	m.Read(boxes...)
	m.Save()
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.accounts, func(id policy.BoxID, _ *account) bool { return !slices.Contains(boxes, id) })
}

// freshFor is how long a reading is good enough for whoever asks for a new one.
const freshFor = time.Second

// Refresh reads the counters of a box unless they have just been read.
func (m *Meter) Refresh(id policy.BoxID) {
	m.mu.Lock()
	a := m.accounts[id]
	fresh := a != nil && time.Since(a.read) < freshFor
	m.mu.Unlock()
	if !fresh {
		m.Read(id)
	}
}

// Read reads the counters of these boxes now. Call it before counters go, as when a box is stopped.
func (m *Meter) Read(boxes ...policy.BoxID) {
	m.reading.Lock()
	defer m.reading.Unlock()
	found, err := m.cfg.Kernel.Read(boxes)
	if err != nil {
		m.cfg.Log.Warn("the counters of boxes cannot be read; they are read again soon", zap.Error(err))
	}
	for id, r := range found {
		g := m.add(id, r)
		m.metrics.count(g)
		if g.OOMKills > 0 {
			m.cfg.Log.Warn("a box ran out of memory, and the kernel killed processes in it",
				zap.String("box", string(id)), zap.Uint64("processes", g.OOMKills), zap.Int64("peak_memory", r.PeakMemory))
		}
	}
}

// Transferred reads the counters of the boxes' interfaces, and returns how many bytes each has sent and received since the
// present period began. Periods are of Config.Period each, counted from 1970. With an error, it returns what was known before.
func (m *Meter) Transferred(boxes ...policy.BoxID) (map[policy.BoxID]uint64, error) {
	m.reading.Lock()
	defer m.reading.Unlock()
	found, err := m.cfg.Kernel.ReadLinks(boxes)
	all := map[policy.BoxID]uint64{}
	for _, id := range boxes { // those without an interface too: a new period may have begun
		m.metrics.count(m.add(id, found[id]))
		m.mu.Lock()
		u := m.accounts[id].total
		m.mu.Unlock()
		all[id] = u.In.Total + u.Out.Total - u.Period.Before
	}
	return all, err
}

// begin notes what had been transferred when the present period began, if that is new. A total includes what was
// transferred in an earlier period since it was last read. A clock that is put back begins no new period.
func (m *Meter) begin(u *store.Usage) {
	if m.cfg.Period <= 0 {
		return
	}
	length := int64(m.cfg.Period)
	if n := time.Now().UnixNano() / length; n > u.Period.Number || length != u.Period.Length {
		u.Period = store.Period{Length: length, Number: n, Before: u.In.Total + u.Out.Total}
	}
}

func (m *Meter) add(id policy.BoxID, r Reading) (g Growth) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[id]
	if a == nil {
		a = &account{}
		m.accounts[id] = a
	}
	m.begin(&a.total)
	a.total, g = add(a.total, r)
	if r.GroupLife != "" || r.LinkLife == "" {
		a.memory, a.read = r.Memory, time.Now()
	}
	return g
}

// Save stores the totals that have changed. Until it succeeds, the store has the older ones, from which the next start
// counts the same again.
func (m *Meter) Save() {
	changed := m.changed()
	if len(changed) == 0 {
		return
	}
	if err := m.cfg.Store.SaveUsages(changed); err != nil {
		m.cfg.Log.Error("what boxes have used could not be stored; it is tried again", zap.Error(err))
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, u := range changed {
		if a := m.accounts[id]; a != nil {
			a.stored = u
		}
	}
}

func (m *Meter) changed() map[policy.BoxID]store.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed := map[policy.BoxID]store.Usage{}
	for id, a := range m.accounts {
		if a.total != a.stored {
			changed[id] = a.total
		}
	}
	return changed
}

// Of returns what a box had used when its counters were last read.
func (m *Meter) Of(id policy.BoxID) Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[id]
	if a == nil {
		return Usage{}
	}
	return Usage{
		CPU: time.Duration(a.total.CPU.Total), Memory: a.memory, PeakMemory: a.total.PeakMemory,
		In: a.total.In.Total, Out: a.total.Out.Total, OOMKills: a.total.OOMKills.Total, Disk: a.disk,
	}
}

// Forget forgets a box that was deleted.
func (m *Meter) Forget(id policy.BoxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.accounts, id)
}

// sums adds up what the boxes have now.
func (m *Meter) sums() (memory, disk int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a := range maps.Values(m.accounts) {
		memory, disk = memory+a.memory, disk+a.disk.Bytes
	}
	return memory, disk
}
