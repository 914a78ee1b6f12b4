package share

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/config"
	"boxgate/internal/memory"
	"boxgate/preflight"
	"boxgate/quota"
)

// Memory divides the memory of the process, in bytes. The part that is not for boxes is for the gateway itself: its
// state, the admin API, the kernel rules, images, and uncollected garbage.
type Memory struct {
	all   int64
	boxes int64 // limit for all boxes together
	box   int64 // limit for one box
}

// shareMemory divides the configured memory, or else the memory that the host offers. Half is for boxes.
func shareMemory(l config.Limits, host int64) Memory {
	all := int64(l.ProcessMemory)
	if all == 0 {
		all = max(host, config.MinMemory)
	}
	return Memory{all: all, boxes: all / 2, box: min(int64(l.Memory), all/2)}
}

// MemoryOf divides the memory of this process.
func MemoryOf(cfg config.Config) Memory {
	return shareMemory(cfg.Limits, hostMemory("/proc", "/sys/fs/cgroup"))
}

// LimitRuntime sets the runtime's memory limit, and makes it collect less often while the heap is small. GOMEMLIMIT and GOGC in
// the environment take precedence. Call it once.
func (m Memory) LimitRuntime() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(m.all)
	}
	if os.Getenv("GOGC") == "" {
		paceCollections(uint64(min(leastGarbage, m.all/8)))
	}
}

// Budget returns the memory budget that boxes share.
func (m Memory) Budget() *memory.Budget { return memory.New(m.boxes, m.box) }

// hostMemory returns the memory for a gateway without a configured limit: a quarter of the machine's memory, as the rest
// is for boxes, or three quarters of its cgroup's limit, whichever is less.
func hostMemory(proc, cgroups string) int64 {
	machine := int64(math.MaxInt64)
	if n, err := totalMemory(filepath.Join(proc, "meminfo")); err == nil {
		machine = n / 4
	}
	limit := cgroupMemory(filepath.Join(proc, "self/cgroup"), cgroups)
	if limit < math.MaxInt64 {
		limit = limit / 4 * 3
	}
	if least := min(machine, limit); least < math.MaxInt64 {
		return least
	}
	return config.MinMemory
}

// totalMemory reads MemTotal from /proc/meminfo.
func totalMemory(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no MemTotal")
}

// cgroupMemory returns the lowest memory limit of the process's cgroups and their ancestors, of version 1 or 2,
// math.MaxInt64 without a limit.
func cgroupMemory(membership, root string) int64 {
	data, err := os.ReadFile(membership)
	if err != nil {
		return math.MaxInt64
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "": // version 2, mounted alone or together with version 1
			for _, mount := range []string{root, filepath.Join(root, "unified")} {
				least = min(least, limitOn(mount, parts[2], "memory.max"), limitOn(mount, parts[2], "memory.high"))
			}
		case strings.Contains(","+parts[1]+",", ",memory,"):
			least = min(least, limitOn(filepath.Join(root, "memory"), parts[2], "memory.limit_in_bytes"))
		}
	}
	return least
}

// limitOn returns the lowest number in a file of a cgroup and of its ancestors.
func limitOn(mount, path, file string) int64 {
	least := int64(math.MaxInt64)
	for dir := filepath.Join("/", path); ; dir = filepath.Dir(dir) {
		if data, err := os.ReadFile(filepath.Join(mount, dir, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil && n > 0 {
				least = min(least, n) // "max" is not a number
			}
		}
		if dir == "/" {
			return least
		}
	}
}

// CheckMemory warns if boxes at their limits would need more memory than there is, and if more memory is configured than
// the host has.
func CheckMemory(cfg config.Config) error {
	return memoryFindings(cfg.Limits, hostMemory("/proc", "/sys/fs/cgroup"), boxesOnDisk(cfg))
}

func memoryFindings(l config.Limits, host int64, boxes int) error {
	m := shareMemory(l, host)
	var errs []error
	if int64(l.ProcessMemory) > host {
		errs = append(errs, preflight.Warnf("limits.process_memory is %v, and a gateway on this host should have %v: the boxes' programs "+
			"may find too little; lower it, or give the host or the gateway's cgroup more", l.ProcessMemory, config.Size(host)))
	}
	if boxes = max(boxes, 1); int64(l.Memory) > m.boxes/int64(boxes) {
		errs = append(errs, preflight.Warnf("limits.memory lets each of %s make the gateway hold %v, and there are %v for all "+
			"together: a box may get less; lower it, or raise limits.process_memory (%v)", counted(boxes), l.Memory, config.Size(m.boxes), config.Size(m.all)))
	}
	return errors.Join(errs...)
}

// Metrics exports the memory held for boxes, by purpose.
type Metrics struct{ Budget *memory.Budget }

var (
	heldDesc = prometheus.NewDesc("boxgate_memory_held_bytes",
		"Upper bound of the memory that the gateway holds for boxes, by purpose.", []string{"kind"}, nil)
	budgetDesc = prometheus.NewDesc("boxgate_memory_budget_bytes",
		"Limit of the memory that the gateway holds for all boxes together.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (Metrics) Describe(ch chan<- *prometheus.Desc) { ch <- heldDesc; ch <- budgetDesc }

// Collect implements [prometheus.Collector].
func (m Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, k := range memory.Kinds() {
		ch <- prometheus.MustNewConstMetric(heldDesc, prometheus.GaugeValue, float64(m.Budget.InUse(k)), k.String())
	}
	ch <- prometheus.MustNewConstMetric(budgetDesc, prometheus.GaugeValue, float64(m.Budget.Total()))
}

// leastGarbage is the garbage in bytes that may accumulate before a collection. A gateway's live heap is small, and it
// produces much short-lived garbage: collecting whenever garbage equals the live heap, as the runtime does by default,
// costs more CPU than the memory is worth, and delays requests.
const leastGarbage = 32 << 20

// mostPercent is the maximum value of GOGC that paceCollections sets.
const mostPercent = 2000

// paceCollections makes the runtime collect when garbage equals the live heap, but not before there are that many bytes of garbage.
// The runtime's memory limit still applies.
func paceCollections(garbage uint64) (stop func()) {
	stopped := make(chan struct{})
	held := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	set := 100
	var collected func(*sentinel)
	collected = func(s *sentinel) {
		select {
		case <-stopped:
			return
		default:
		}
		metrics.Read(held)
		sum := uint64(0)
		for _, h := range held {
			if h.Value.Kind() != metrics.KindUint64 {
				return // this Go version lacks the metric; its default pace stays
			}
			sum += h.Value.Uint64()
		}
		if want := percent(sum, garbage); want > set+set/10 || want < set-set/10 { // SetGCPercent stops the world for a moment
			debug.SetGCPercent(want)
			set = want
		}
		// Run again at the next collection. A cleanup (runtime.AddCleanup) would run later, after sweeping.
		runtime.SetFinalizer(s, collected)
	}
	collected(&sentinel{})
	return func() { close(stopped) }
}

// sentinel becomes garbage immediately. It contains a pointer, so that the tiny allocator does not batch it with other
// objects.
type sentinel struct{ _ *sentinel }

// percent returns the GOGC value at which garbage bytes accumulate on top of held live bytes.
func percent(held, garbage uint64) int {
	return int(min(max(garbage*100/max(held, 1), 100), mostPercent))
}

const (
	restPeriod  = 500 * time.Millisecond
	restPeriods = 2        // periods with little allocation until the gateway counts as at rest
	restAlloc   = 32       // allocating less than 1/restAlloc of the live heap is little
	leastWaste  = 4 << 20  // minimum worth returning; also at least a quarter of the live heap
	leastAlloc  = 64 << 10 // lower bound of little, in bytes
	restShare   = 20       // the reciprocal of the share of time that returning memory may take
)

// ReturnUnused returns memory to the system whenever the gateway comes to rest after a burst, until ctx is done. The runtime
// would keep garbage until as much again as was in use has been allocated, and free memory for minutes.
func ReturnUnused(ctx context.Context) {
	tick := time.NewTicker(restPeriod)
	defer tick.Stop()
	var r restDetector
	read := heapReader()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if !r.due(now, read()) {
				continue
			}
			runtime.GC() // sync.Pool drops its buffers, and stacks shrink, over two collections
			debug.FreeOSMemory()
			r.gaveBack(time.Since(now), time.Now())
		}
	}
}

// heap has the state of the Go heap in bytes.
type heap struct {
	allocated uint64 // cumulative
	live      uint64 // live at the last collection
	objects   uint64 // live at the last collection plus allocated since, in use or garbage
	free      uint64 // free but not returned to the system
}

// heapReader returns a function that reads the state of the heap.
func heapReader() func() heap {
	s := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	return func() heap {
		metrics.Read(s)
		return heap{s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64(), s[3].Value.Uint64()}
	}
}

// restDetector detects that the gateway is at rest and holds memory that it does not need.
type restDetector struct {
	allocated uint64 // at the last look
	quiet     int    // consecutive periods with little allocation
	earliest  time.Time
}

// due reports whether memory should be returned.
func (r *restDetector) due(now time.Time, h heap) bool {
	more := h.allocated - r.allocated
	r.allocated = h.allocated
	if more > max(h.live/restAlloc, leastAlloc) {
		r.quiet = 0
		return false
	}
	r.quiet++
	waste := h.free + h.objects - min(h.live, h.objects)
	return r.quiet >= restPeriods && waste >= max(h.live/4, leastWaste) && !now.Before(r.earliest)
}

// gaveBack records how long returning memory took.
func (r *restDetector) gaveBack(took time.Duration, now time.Time) {
	r.earliest = now.Add(restShare * took)
}

// connectionMemory is the memory of an admin API connection with its buffers and request, in bytes.
const connectionMemory = 32 << 10

// Totals returns the limits for all API keys together. Connections use an eighth of the descriptor reserve; so do
// commands, which use a few descriptors each. Request and response bodies may use a quarter of the memory, in addition to
// the half that is for boxes.
func Totals(d Descriptors, m Memory) quota.Limits {
	connections := max(16, min(int64(d.reserve/8), m.all/16/connectionMemory, 4096))
	var l quota.Limits
	l[quota.Connections], l[quota.Requests] = connections, connections
	l[quota.Memory] = min(m.all/4, 1<<30)
	l[quota.Commands] = max(16, min(int64(d.reserve/8), 2048))
	return l
}
