package meter

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"boxgate/policy"
	"boxgate/store"
)

// Interval is the interval at which the counters of all boxes are read, and changed totals are stored.
const Interval = 15 * time.Second

// Usage is the usage of a box since it was created.
type Usage struct {
	CPU        time.Duration
	Memory     int64 // current
	PeakMemory int64
	In, Out    uint64 // bytes at its interface, to the box and from it
	OOMKills   uint64
	Disk       Disk
}

// Disk is the result of the last count of a box's files.
type Disk struct {
	Bytes, Inodes int64
	Whole         bool      // false: the count is incomplete
	At            time.Time // zero: not counted yet
}

// Kernel reads the counters of boxes. Boxes without counters are omitted from the results.
type Kernel interface {
	Read(boxes []policy.BoxID) (map[policy.BoxID]Reading, error)
	// ReadLinks is like Read for the counters of interfaces only, which are cheap to read.
	ReadLinks(boxes []policy.BoxID) (map[policy.BoxID]Reading, error)
	// Disk counts the files that a box has written, which may take long.
	Disk(ctx context.Context, box policy.BoxID) (Disk, error)
}

// Store stores totals; implemented by [store.Usages].
type Store interface {
	All() (map[policy.BoxID]store.Usage, error)
	Save(map[policy.BoxID]store.Usage) error
}

// Config configures a meter. All fields but Period must be set.
type Config struct {
	Period time.Duration // see [Meter.Transferred]

	Boxes  func() []policy.BoxID // all existing boxes
	Kernel Kernel
	Store  Store
	Log    *zap.Logger
}

// Meter adds up the usage of boxes. Safe for concurrent use.
type Meter struct {
	cfg     Config
	metrics *metrics

	reading sync.Mutex // serialises readings, so that an older one never overwrites a newer one

	mu       sync.Mutex
	accounts map[policy.BoxID]*account // guarded by mu
}

// account is the usage of one box.
type account struct {
	total      store.Usage
	stored     store.Usage // as in the store
	readAt     time.Time   // time of the last reading
	memory     int64
	disk       Disk
	countTook  time.Duration // duration of the last count of files
	cpuAtCount uint64        // CPU time of the box at that count
}

// Open returns a meter that continues from the totals in the store.
func Open(cfg Config) (*Meter, error) {
	m := &Meter{cfg: cfg, accounts: map[policy.BoxID]*account{}}
	m.metrics = newMetrics(m)
	all, err := cfg.Store.All()
	for id, u := range all {
		m.accounts[id] = &account{total: u, stored: u}
	}
	return m, err
}

// Run reads the counters every [Interval] until ctx is done, and then once more.
func (m *Meter) Run(ctx context.Context) {
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	var disks sync.WaitGroup
	disks.Go(func() { m.countAllFiles(ctx) })
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

// freshFor is how long Refresh considers a reading fresh.
const freshFor = time.Second

// Refresh reads the counters of a box unless they have just been read.
func (m *Meter) Refresh(id policy.BoxID) {
	m.mu.Lock()
	a := m.accounts[id]
	fresh := a != nil && time.Since(a.readAt) < freshFor
	m.mu.Unlock()
	if !fresh {
		m.Read(id)
	}
}

// Read reads the counters of boxes now. Call it before counters disappear, as when a box is stopped.
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

// Transferred reads the counters of the boxes' interfaces, and returns the bytes each box has transferred, in both
// directions, since the current period began. Periods have the length Config.Period and are counted from 1970. With an
// error, the result is from the last reading.
func (m *Meter) Transferred(boxes ...policy.BoxID) (map[policy.BoxID]uint64, error) {
	m.reading.Lock()
	defer m.reading.Unlock()
	found, err := m.cfg.Kernel.ReadLinks(boxes)
	all := map[policy.BoxID]uint64{}
	for _, id := range boxes { // boxes without an interface too: a new period may have begun
		m.metrics.count(m.add(id, found[id]))
		m.mu.Lock()
		u := m.accounts[id].total
		m.mu.Unlock()
		all[id] = u.In.Total + u.Out.Total - u.Period.Before
	}
	return all, err
}

// beginPeriod records the total at the start of a period, if a new one has begun. Bytes transferred since the last reading
// count towards the new period, even if they were transferred before it began. A clock that is set back does not begin a
// new period.
func (m *Meter) beginPeriod(u *store.Usage) {
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
	m.beginPeriod(&a.total)
	a.total, g = add(a.total, r)
	if r.GroupLife != "" || r.LinkLife == "" {
		a.memory, a.readAt = r.Memory, time.Now()
	}
	return g
}

// Save stores changed totals. If it fails, the store keeps the older totals with their counter values, so that a restart
// counts the difference again.
func (m *Meter) Save() {
	changed := m.changed()
	if len(changed) == 0 {
		return
	}
	if err := m.cfg.Store.Save(changed); err != nil {
		m.cfg.Log.Error("the usage of boxes could not be stored; retrying", zap.Error(err))
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

// Of returns the usage of a box at the last reading.
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

// Forget drops the account of a deleted box.
func (m *Meter) Forget(id policy.BoxID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.accounts, id)
}

// sums adds up the current memory and disk usage of all boxes.
func (m *Meter) sums() (memory, disk int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for a := range maps.Values(m.accounts) {
		memory, disk = memory+a.memory, disk+a.disk.Bytes
	}
	return memory, disk
}

// Reading is one reading of the kernel's counters of a box. An empty life means that there is no counter.
type Reading struct {
	GroupLife  string // of the cgroup
	CPU        time.Duration
	Memory     int64 // current
	PeakMemory int64
	OOMKills   uint64

	LinkLife string // of the interface
	In, Out  uint64 // bytes to the box and from it
}

// Growth is the usage since the previous reading.
type Growth struct {
	CPU               time.Duration
	In, Out, OOMKills uint64
}

// add adds the usage since the last reading. Totals never decrease: a counter with another life or a smaller value was
// restarted, and counts from zero.
func add(u store.Usage, r Reading) (store.Usage, Growth) {
	var g Growth
	if r.GroupLife != "" {
		g.CPU = time.Duration(advance(&u.CPU, r.GroupLife, uint64(max(r.CPU, 0))))
		g.OOMKills = advance(&u.OOMKills, r.GroupLife, r.OOMKills)
		u.PeakMemory = max(u.PeakMemory, r.PeakMemory, r.Memory)
	}
	if r.LinkLife != "" {
		g.In = advance(&u.In, r.LinkLife, r.In)
		g.Out = advance(&u.Out, r.LinkLife, r.Out)
	}
	return u, g
}

func advance(c *store.Count, life string, now uint64) uint64 {
	more := now
	if c.Life == life && now >= c.Seen {
		more = now - c.Seen
	}
	c.Total, c.Life, c.Seen = c.Total+more, life, now
	return more
}

// A box's files are counted at most once a minute, and so rarely that counting takes at most a twentieth of the time. One
// count takes half a minute at most.
const (
	diskPause = time.Minute
	diskShare = 20
	diskMost  = 30 * time.Second
	diskTick  = 2 * time.Second
)

// countAllFiles counts the files of one box after the other until ctx is done.
func (m *Meter) countAllFiles(ctx context.Context) {
	tick := time.NewTicker(diskTick)
	defer tick.Stop()
	for {
		for _, id := range m.cfg.Boxes() {
			if ctx.Err() == nil && m.diskDue(id) {
				m.countFiles(ctx, id)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// diskDue reports whether a box's files should be counted: it is time, and the box may have changed them, since it has
// used CPU time.
func (m *Meter) diskDue(id policy.BoxID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[id]
	if a == nil {
		return false
	}
	return a.disk.At.IsZero() || a.cpuAtCount != a.total.CPU.Total && time.Since(a.disk.At) > max(diskPause, diskShare*a.countTook)
}

func (m *Meter) countFiles(ctx context.Context, id policy.BoxID) {
	limited, cancel := context.WithTimeout(ctx, diskMost)
	defer cancel()
	began, worked := time.Now(), m.Of(id).CPU
	d, err := m.cfg.Kernel.Disk(limited, id)
	if ctx.Err() != nil {
		return
	}
	if err != nil && limited.Err() == nil {
		m.cfg.Log.Debug("the files of a box could not be counted", zap.String("box", string(id)), zap.Error(err))
	}
	d.Whole, d.At = d.Whole && err == nil, time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.accounts[id]; a != nil {
		a.disk, a.countTook, a.cpuAtCount = d, time.Since(began), uint64(worked)
	}
}

// metrics are sums over all boxes; figures of single boxes are in the API, since labels must be bounded. Counters start
// at zero with the gateway.
type metrics struct {
	cpu          prometheus.Counter
	in, out      prometheus.Counter
	bytes        *prometheus.CounterVec
	oom          prometheus.Counter
	memory, disk prometheus.GaugeFunc
}

func newMetrics(m *Meter) *metrics {
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "boxgate_boxes_bytes_total", Help: "Bytes at the interfaces of the boxes: in is towards the boxes, out is from them.",
	}, []string{"direction"})
	return &metrics{
		cpu:   prometheus.NewCounter(prometheus.CounterOpts{Name: "boxgate_boxes_cpu_seconds_total", Help: "CPU time used by boxes."}),
		oom:   prometheus.NewCounter(prometheus.CounterOpts{Name: "boxgate_boxes_oom_kills_total", Help: "Processes of boxes that were killed because the box's memory ran out."}),
		bytes: bytes, in: bytes.WithLabelValues("in"), out: bytes.WithLabelValues("out"),
		memory: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "boxgate_boxes_memory_bytes", Help: "Memory of all boxes."}, func() float64 {
			memory, _ := m.sums()
			return float64(memory)
		}),
		disk: prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "boxgate_boxes_disk_bytes", Help: "Bytes that all boxes had written when their files were last counted."}, func() float64 {
			_, disk := m.sums()
			return float64(disk)
		}),
	}
}

func (m *metrics) count(g Growth) {
	m.cpu.Add(g.CPU.Seconds())
	m.in.Add(float64(g.In))
	m.out.Add(float64(g.Out))
	m.oom.Add(float64(g.OOMKills))
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.cpu, m.bytes, m.oom, m.memory, m.disk}
}

// Describe implements [prometheus.Collector].
func (m *Meter) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector]: register the Meter itself.
func (m *Meter) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.metrics.all() {
		c.Collect(ch)
	}
}
