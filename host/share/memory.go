package share

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/config"
	"boxgate/internal/memory"
	"boxgate/preflight"
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
		errs = append(errs, preflight.Warnf("limits.memory lets each of %d box(es) make the gateway hold %v, and there are %v for all "+
			"together: a box may get less; lower it, or raise limits.process_memory (%v)", boxes, l.Memory, config.Size(m.boxes), config.Size(m.all)))
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
