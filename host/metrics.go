package host

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/host/meter"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/store"
)

// conntrackInterval is the interval at which the kernel's connection table is checked.
const conntrackInterval = time.Second

// followConntrack logs when the kernel's connection table is nearly full, and when it has space again. A full table
// silently drops new connections of all boxes and of the host. It returns when ctx is done.
func followConntrack(ctx context.Context, log *zap.Logger) error {
	tick := time.NewTicker(conntrackInterval)
	defer tick.Stop()
	full := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		count, limit, err := ConntrackFill()
		if err != nil || limit == 0 { // no limit, or a kernel that does not report it
			continue
		}
		now := full && count > limit/10*8 || count > limit/10*9
		if now != full {
			logConntrack(log, now, count, limit)
		}
		full = now
	}
}

func logConntrack(log *zap.Logger, full bool, count, limit int) {
	fields := []zap.Field{zap.Int("entries", count), zap.Int("nf_conntrack_max", limit)}
	if full {
		log.Error("the kernel's connection table is nearly full: a full one drops new connections; raise net.netfilter.nf_conntrack_max, "+
			"or lower limits.kernel_flows", fields...)
		return
	}
	log.Info("the kernel's connection table has room again", fields...)
}

// ConntrackFill returns the number of entries of this network namespace and their limit.
func ConntrackFill() (count, limit int, err error) {
	for name, value := range map[string]*int{"nf_conntrack_count": &count, "nf_conntrack_max": &limit} {
		text, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
		if err != nil {
			return 0, 0, err
		}
		if *value, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", name, err)
		}
	}
	return count, limit, nil
}

// limitMetrics exports how close the limits are: for the whole gateway, for the box closest to each limit, and, if
// configured, for single boxes, together with their usage.
type limitMetrics struct{ parts *parts }

var (
	limitUsed = prometheus.NewDesc("boxgate_limit_used_ratio",
		"Used fraction of a limit of the whole gateway, from 0 to 1.", []string{"limit"}, nil)
	nearestUsed = prometheus.NewDesc("boxgate_box_limit_used_max_ratio",
		"Highest used fraction of a limit among all boxes, from 0 to 1.", []string{"limit"}, nil)
	logPending = prometheus.NewDesc("boxgate_log_pending_bytes", "Bytes of the log that wait for a slow reader.", nil, nil)
	storeSize  = prometheus.NewDesc("boxgate_store_bytes", "Size of the store's file.", nil, nil)

	boxesOmitted = prometheus.NewDesc("boxgate_box_metrics_omitted",
		"Boxes without metrics of their own, since there are more than metrics.per_box.max.", nil, nil)
	boxUsed   = prometheus.NewDesc("boxgate_box_limit_used_ratio", "Used fraction of a limit of the box, from 0 to 1.", []string{"box", "limit"}, nil)
	boxCPU    = prometheus.NewDesc("boxgate_box_cpu_seconds_total", "CPU time that the box has used since it was created.", []string{"box"}, nil)
	boxMemory = prometheus.NewDesc("boxgate_box_memory_bytes", "Memory of the box.", []string{"box"}, nil)
	boxDisk   = prometheus.NewDesc("boxgate_box_disk_bytes", "Bytes that the box had written when its files were last counted.", []string{"box"}, nil)
	boxBytes  = prometheus.NewDesc("boxgate_box_bytes_total", "Bytes at the box's interface since it was created: in is towards the box.", []string{"box", "direction"}, nil)
)

// Describe implements [prometheus.Collector].
func (m limitMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{limitUsed, nearestUsed, logPending, storeSize, boxesOmitted, boxUsed, boxCPU, boxMemory, boxDisk, boxBytes} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m limitMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for limit, used := range m.usedByGateway() {
		gauge(limitUsed, used, limit)
	}
	if m.parts.lines != nil {
		bytes, _ := m.parts.lines.Pending()
		gauge(logPending, float64(bytes))
	}
	if info, err := os.Stat(filepath.Join(m.parts.cfg.StateDir, store.FileName)); err == nil {
		gauge(storeSize, float64(info.Size()))
	}
	m.collectBoxes(ch, gauge)
}

// usedByGateway returns the used fraction of each limit of the whole gateway. Limits that cannot be read are omitted.
func (m limitMetrics) usedByGateway() map[string]float64 {
	p := m.parts
	used := map[string]float64{"memory": ratio(p.memory.Used(), p.memory.Total())}
	if entries, limit, err := ConntrackFill(); err == nil && limit > 0 {
		used["conntrack"] = ratio(int64(entries), int64(limit))
	}
	var most unix.Rlimit
	if open, err := os.ReadDir("/proc/self/fd"); err == nil && unix.Getrlimit(unix.RLIMIT_NOFILE, &most) == nil {
		used["descriptors"] = float64(len(open)) / float64(most.Cur)
	}
	// The first and last addresses of the pool, the gateway's and the sink's cannot belong to boxes.
	used["addresses"] = float64(len(p.boxes.IDs())) / (math.Exp2(float64(32-p.addrs.PoolV4.Bits())) - 4)
	if p.lines != nil {
		bytes, limit := p.lines.Pending()
		used["log"] = ratio(int64(bytes), int64(limit))
	}
	return used
}

func ratio(used, limit int64) float64 {
	if limit <= 0 {
		return 0
	}
	return float64(used) / float64(limit)
}

// collectBoxes collects the metrics of all boxes, oldest first.
func (m limitMetrics) collectBoxes(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, ...string)) {
	p := m.parts
	all := p.boxes.All()
	slices.SortFunc(all, func(a, b *state.Box) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	most := map[string]float64{"connections": 0, "interceptions": 0, "streams": 0, "memory": 0}
	for i, b := range all {
		filled := m.usedByBox(b)
		for limit, used := range filled {
			most[limit] = max(most[limit], used)
		}
		if p.cfg.Metrics.PerBox.Enabled && i < p.cfg.Metrics.PerBox.Max {
			collectUsage(ch, string(b.ID), filled, p.meter.Of(b.ID))
		}
	}
	for limit, used := range most {
		gauge(nearestUsed, used, limit)
	}
	if p.cfg.Metrics.PerBox.Enabled {
		gauge(boxesOmitted, float64(max(0, len(all)-p.cfg.Metrics.PerBox.Max)))
	}
}

// usedByBox returns the used fraction of each limit of a box.
func (m limitMetrics) usedByBox(b *state.Box) map[string]float64 {
	id := b.ID
	filled := m.parts.proxy.Filled(id)
	filled["memory"] = ratio(m.parts.memory.InUseBy(string(id)), b.Limits.Of(policy.LimitMemory, m.parts.memory.Most()))
	return filled
}

// collectUsage exports the usage of one box.
func collectUsage(ch chan<- prometheus.Metric, id string, filled map[string]float64, u meter.Usage) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, value, append([]string{id}, labels...)...)
	}
	for limit, used := range filled {
		send(boxUsed, prometheus.GaugeValue, used, limit)
	}
	send(boxCPU, prometheus.CounterValue, u.CPU.Seconds())
	send(boxMemory, prometheus.GaugeValue, float64(u.Memory))
	send(boxDisk, prometheus.GaugeValue, float64(u.Disk.Bytes))
	send(boxBytes, prometheus.CounterValue, float64(u.In), "in")
	send(boxBytes, prometheus.CounterValue, float64(u.Out), "out")
}
