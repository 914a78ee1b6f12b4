package config

import (
	"time"
)

// Limits bounds how much of the gateway one box can use, so that enough is left for the others.
type Limits struct {
	Connections    int           `yaml:"connections"`
	NewConnections int           `yaml:"new_connections_per_second"`
	Interceptions  int           `yaml:"interceptions"`
	Streams        int           `yaml:"streams"`
	Requests       int           `yaml:"requests_per_second"`
	Upstreams      int           `yaml:"upstreams"`
	KernelFlows    int           `yaml:"kernel_flows"`
	DNSQueries     int           `yaml:"dns_queries_per_second"`
	Send           Size          `yaml:"send_bytes_per_second"`    // 0: no limit
	Receive        Size          `yaml:"receive_bytes_per_second"` // 0: no limit
	Quota          Size          `yaml:"quota"`                    // bytes in a period; 0: no limit
	QuotaPeriod    time.Duration `yaml:"quota_period"`
	PeekTimeout    time.Duration `yaml:"peek_timeout"`
	Memory         Size          `yaml:"memory"`
	ProcessMemory  Size          `yaml:"process_memory"` // of the gateway, not of one box; 0: depends on the host
}

// DefaultLimits are the limits if the configuration sets none.
func DefaultLimits() Limits {
	return Limits{
		Connections: 2048, NewConnections: 1000, Interceptions: 1024, Streams: 1024, Requests: 50000, Upstreams: 512,
		KernelFlows: 16384, DNSQueries: 500, QuotaPeriod: 24 * time.Hour, PeekTimeout: 10 * time.Second,
		Memory: 256 << 20,
	}
}

// MostOfAnything is the largest count that can be configured: anything above it must be a mistake.
const MostOfAnything = 1_000_000

// The rates that can be configured, in bytes a second: what one connection still works with, and 100 Gbit/s.
const (
	leastRate Size = 64 << 10
	mostRate  Size = 12_500_000_000
)

// leastQuota is what a box needs to be of any use.
const leastQuota Size = 1 << 20

// check finds limits that would refuse everything or nothing: but for the rates, limits cannot be turned off.
func (l *Limits) check(fail func(key, format string, args ...any)) {
	for key, n := range map[string]int{
		"connections": l.Connections, "new_connections_per_second": l.NewConnections,
		"interceptions": l.Interceptions, "streams": l.Streams, "requests_per_second": l.Requests, "upstreams": l.Upstreams, "kernel_flows": l.KernelFlows,
		"dns_queries_per_second": l.DNSQueries,
	} {
		if n < 1 || n > MostOfAnything {
			fail("limits."+key, "%d is out of range; use 1 to %d", n, MostOfAnything)
		}
	}
	for key, rate := range map[string]Size{"send_bytes_per_second": l.Send, "receive_bytes_per_second": l.Receive} {
		if rate != 0 && (rate < leastRate || rate > mostRate) {
			fail("limits."+key, "%v is out of range; use %v to %v, or 0 for no limit", rate, leastRate, mostRate)
		}
	}
	if l.Quota != 0 && l.Quota < leastQuota {
		fail("limits.quota", "%v is out of range; use %v or more, or 0 for no limit", l.Quota, leastQuota)
	}
	if l.QuotaPeriod < time.Minute || l.QuotaPeriod > 366*24*time.Hour {
		fail("limits.quota_period", "%v is out of range; use 1m to 8784h", l.QuotaPeriod)
	}
	if l.PeekTimeout < 100*time.Millisecond || l.PeekTimeout > 5*time.Minute {
		fail("limits.peek_timeout", "%v is out of range; use 100ms to 5m", l.PeekTimeout)
	}
	if l.Memory < 16<<20 || l.Memory > 1<<40 {
		fail("limits.memory", "%v is out of range; use 16MiB to 1TiB", l.Memory)
	}
	if l.ProcessMemory != 0 && (l.ProcessMemory < LeastMemory || l.ProcessMemory > 1<<44) {
		fail("limits.process_memory", "%v is out of range; use %v to 16TiB, or 0 for what the host leaves", l.ProcessMemory, Size(LeastMemory))
	}
}
