package config

import (
	"maps"
	"slices"

	"boxgate/quota"
)

// Quotas are the defaults for API keys without quotas of their own. Admin keys have no quotas.
type Quotas struct {
	Connections   int  `yaml:"connections"`
	Memory        Size `yaml:"memory"`
	Requests      int  `yaml:"requests"`
	Commands      int  `yaml:"commands"`
	Boxes         int  `yaml:"boxes"`
	Snapshots     int  `yaml:"snapshots"`
	SnapshotBytes Size `yaml:"snapshot_bytes"`
	URLs          int  `yaml:"urls"`
	Domains       int  `yaml:"domains"`
	Schedules     int  `yaml:"schedules"`
	Certificates  int  `yaml:"certificates_per_hour"`
}

// DefaultQuotas are the quotas of an empty configuration. A single user does not reach them.
func DefaultQuotas() Quotas {
	return Quotas{
		Connections: 512, Memory: 128 << 20, Requests: 256, Commands: 128, Boxes: 500, Snapshots: 200, SnapshotBytes: 50 << 30,
		URLs: 500, Domains: 50, Schedules: 200, Certificates: 20,
	}
}

// Limits returns the quotas in the form that package quota uses.
func (q Quotas) Limits() quota.Limits {
	var l quota.Limits
	for k, n := range q.byKind() {
		l[k] = n
	}
	return l
}

func (q Quotas) byKind() map[quota.Kind]int64 {
	return map[quota.Kind]int64{
		quota.Connections: int64(q.Connections), quota.Memory: int64(q.Memory), quota.Requests: int64(q.Requests), quota.Commands: int64(q.Commands),
		quota.Boxes: int64(q.Boxes), quota.Snapshots: int64(q.Snapshots), quota.SnapshotBytes: int64(q.SnapshotBytes), quota.URLs: int64(q.URLs),
		quota.Domains: int64(q.Domains), quota.Schedules: int64(q.Schedules), quota.Certificates: int64(q.Certificates),
	}
}

// minQuotaMemory is enough for a request with a body.
const minQuotaMemory = 1 << 20

// check finds quotas that would refuse all requests or never apply.
func (q Quotas) check(fail func(key, format string, args ...any)) {
	all := q.byKind()
	for _, k := range slices.Sorted(maps.Keys(all)) {
		least := int64(1)
		if k.InBytes() {
			least = minQuotaMemory
		}
		switch n := all[k]; {
		case n >= least && n <= k.Max():
		case k.InBytes():
			fail("quotas."+k.String(), "%v is out of range; use %v to %v", Size(n), Size(least), Size(k.Max()))
		default:
			fail("quotas."+k.String(), "%d is out of range; use %d to %d", n, least, k.Max())
		}
	}
}
