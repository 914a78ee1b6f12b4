package main

import (
	"time"

	"boxgate/dns"
	"boxgate/proxy"
)

// limitsConfig bounds what one box can take of the gateway, so that the others keep theirs.
type limitsConfig struct {
	Connections    int           `yaml:"connections"`
	NewConnections int           `yaml:"new_connections_per_second"`
	Interceptions  int           `yaml:"interceptions"`
	Streams        int           `yaml:"streams"`
	Requests       int           `yaml:"requests_per_second"`
	Upstreams      int           `yaml:"upstreams"`
	KernelFlows    int           `yaml:"kernel_flows"`
	DNSQueries     int           `yaml:"dns_queries_per_second"`
	PeekTimeout    time.Duration `yaml:"peek_timeout"`
	Memory         size          `yaml:"memory"`
	ProcessMemory  size          `yaml:"process_memory"` // of the gateway, not of one box; 0: by the host
}

func defaultLimits() limitsConfig {
	return limitsConfig{
		Connections: 2048, NewConnections: 1000, Interceptions: 1024, Streams: 1024, Requests: 50000, Upstreams: 512,
		KernelFlows: 16384, DNSQueries: 500, PeekTimeout: 10 * time.Second,
		Memory: 256 << 20,
	}
}

// mostOfAnything is the largest count that can be configured: beyond it lies a mistake, not a machine.
const mostOfAnything = 1_000_000

// check finds limits that would refuse everything, or nothing: there is no way to have none.
func (l *limitsConfig) check(fail func(key, format string, args ...any)) {
	for key, n := range map[string]int{
		"connections": l.Connections, "new_connections_per_second": l.NewConnections,
		"interceptions": l.Interceptions, "streams": l.Streams, "requests_per_second": l.Requests, "upstreams": l.Upstreams, "kernel_flows": l.KernelFlows,
		"dns_queries_per_second": l.DNSQueries,
	} {
		if n < 1 || n > mostOfAnything {
			fail("limits."+key, "%d is out of range; use 1 to %d", n, mostOfAnything)
		}
	}
	if l.PeekTimeout < 100*time.Millisecond || l.PeekTimeout > 5*time.Minute {
		fail("limits.peek_timeout", "%v is out of range; use 100ms to 5m", l.PeekTimeout)
	}
	if l.Memory < 16<<20 || l.Memory > 1<<40 {
		fail("limits.memory", "%v is out of range; use 16MiB to 1TiB", l.Memory)
	}
	if l.ProcessMemory != 0 && (l.ProcessMemory < leastMemory || l.ProcessMemory > 1<<44) {
		fail("limits.process_memory", "%v is out of range; use %v to 16TiB, or 0 for what the host leaves", l.ProcessMemory, size(leastMemory))
	}
}

// dns returns the limits for the DNS server; what is not configured stays as it is there.
func (l *limitsConfig) dns() dns.Limits {
	return dns.Limits{QueriesPerSecond: float64(l.DNSQueries), Burst: 2 * l.DNSQueries}
}

// apply sets the limits of the proxy.
func (l *limitsConfig) apply(c *proxy.Config) {
	c.MaxConns, c.MaxNewConns, c.MaxInterceptions = l.Connections, l.NewConnections, l.Interceptions
	c.MaxStreams, c.MaxRequests, c.MaxUpstreams, c.PeekTimeout = l.Streams, l.Requests, l.Upstreams, l.PeekTimeout
}
