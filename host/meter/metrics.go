package meter

import "github.com/prometheus/client_golang/prometheus"

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
