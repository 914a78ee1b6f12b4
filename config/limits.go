package config

import (
	"time"

	"boxgate/policy"
)

// Limits bounds the resources of the gateway that one box can use, so that enough is left for the others.
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
	ProcessMemory  Size          `yaml:"process_memory"` // of the gateway process; 0: depends on the host
}

// DefaultLimits are the limits of an empty configuration.
func DefaultLimits() Limits {
	return Limits{
		Connections: 2048, NewConnections: 1000, Interceptions: 1024, Streams: 1024, Requests: 50000, Upstreams: 512,
		KernelFlows: 16384, DNSQueries: 500, QuotaPeriod: 24 * time.Hour, PeekTimeout: 10 * time.Second,
		Memory: 256 << 20,
	}
}

// MaxCount is the largest count that can be configured: a larger one must be a mistake.
const MaxCount = 1_000_000

// counts returns the limits that are numbers.
func (l *Limits) counts() map[policy.Limit]int {
	return map[policy.Limit]int{
		policy.LimitConnections: l.Connections, policy.LimitNewConnections: l.NewConnections, policy.LimitInterceptions: l.Interceptions,
		policy.LimitStreams: l.Streams, policy.LimitRequests: l.Requests, policy.LimitUpstreams: l.Upstreams, policy.LimitDNSQueries: l.DNSQueries,
	}
}

// sizes returns the limits that are bytes.
func (l *Limits) sizes() map[policy.Limit]Size {
	return map[policy.Limit]Size{policy.LimitSend: l.Send, policy.LimitReceive: l.Receive, policy.LimitQuota: l.Quota, policy.LimitMemory: l.Memory}
}

// sizesOf describes the valid range of each size, for errors.
var sizesOf = map[policy.Limit]string{
	policy.LimitSend: rates, policy.LimitReceive: rates, policy.LimitQuota: "1MiB or more, or 0 for no limit", policy.LimitMemory: "16MiB to 1TiB",
}

const rates = "64KiB to 12500000000, or 0 for no limit"

// BoxLimits returns the limits that can be changed for single boxes.
func (l *Limits) BoxLimits() (all policy.Limits) {
	for limit, n := range l.counts() {
		all[limit] = int64(n)
	}
	for limit, n := range l.sizes() {
		if all[limit] = int64(n); n == 0 {
			all[limit] = policy.Unlimited
		}
	}
	return all
}

// check finds limits that would refuse all traffic or never apply: only the byte rates and the quota can be turned off.
func (l *Limits) check(fail func(key, format string, args ...any)) {
	for limit, n := range l.counts() {
		if _, err := limit.Value(int64(n)); err != nil {
			fail("limits."+limit.String(), "%d is out of range; use 1 to %d", n, MaxCount)
		}
	}
	if l.KernelFlows < 1 || l.KernelFlows > MaxCount {
		fail("limits.kernel_flows", "%d is out of range; use 1 to %d", l.KernelFlows, MaxCount)
	}
	for limit, size := range l.sizes() {
		if _, err := limit.Value(int64(size)); err != nil {
			fail("limits."+limit.String(), "%v is out of range; use %s", size, sizesOf[limit])
		}
	}
	if l.QuotaPeriod < time.Minute || l.QuotaPeriod > 366*24*time.Hour {
		fail("limits.quota_period", "%v is out of range; use 1m to 8784h", l.QuotaPeriod)
	}
	if l.PeekTimeout < 100*time.Millisecond || l.PeekTimeout > 5*time.Minute {
		fail("limits.peek_timeout", "%v is out of range; use 100ms to 5m", l.PeekTimeout)
	}
	if l.ProcessMemory != 0 && (l.ProcessMemory < MinMemory || l.ProcessMemory > 1<<44) {
		fail("limits.process_memory", "%v is out of range; use %v to 16TiB, or 0 for what the host leaves", l.ProcessMemory, Size(MinMemory))
	}
}
