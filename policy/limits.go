package policy

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
)

// Limit is a bound on the gateway's resources for one box. The configuration sets each for all boxes, and a box can override it.
type Limit uint8

// The limits.
const (
	LimitConnections    Limit = iota // through the gateway, open
	LimitNewConnections              // a second
	LimitInterceptions               // connections whose TLS is terminated
	LimitStreams                     // HTTP/2 requests in progress
	LimitRequests                    // HTTP requests a second
	LimitUpstreams                   // connections to servers for HTTP requests
	LimitDNSQueries                  // a second
	LimitSend                        // bytes a second
	LimitReceive                     // bytes a second
	LimitQuota                       // bytes in a period, both ways
	LimitMemory                      // bytes that the gateway holds for the box
	limits
)

// Unlimited is the value of a limit without a bound. Only some limits can be unlimited.
const Unlimited = -1

// limitKind contains the name and the possible values of a limit.
type limitKind struct {
	name        string // of its key in the configuration
	least, most int64
	free        bool // can be unlimited, written as 0
	bytes       bool
}

var limitKinds = [limits]limitKind{
	LimitConnections:    {name: "connections", least: 1, most: 1_000_000},
	LimitNewConnections: {name: "new_connections_per_second", least: 1, most: 1_000_000},
	LimitInterceptions:  {name: "interceptions", least: 1, most: 1_000_000},
	LimitStreams:        {name: "streams", least: 1, most: 1_000_000},
	LimitRequests:       {name: "requests_per_second", least: 1, most: 1_000_000},
	LimitUpstreams:      {name: "upstreams", least: 1, most: 1_000_000},
	LimitDNSQueries:     {name: "dns_queries_per_second", least: 1, most: 1_000_000},
	// From the rate at which one connection still works to 100 Gbit/s.
	LimitSend:    {name: "send_bytes_per_second", least: 64 << 10, most: 12_500_000_000, free: true, bytes: true},
	LimitReceive: {name: "receive_bytes_per_second", least: 64 << 10, most: 12_500_000_000, free: true, bytes: true},
	LimitQuota:   {name: "quota", least: 1 << 20, most: math.MaxInt64, free: true, bytes: true},
	LimitMemory:  {name: "memory", least: 16 << 20, most: 1 << 40, bytes: true},
}

// AllLimits returns all limits.
func AllLimits() []Limit {
	all := make([]Limit, limits)
	for i := range all {
		all[i] = Limit(i)
	}
	return all
}

// String returns the name of a limit.
func (l Limit) String() string { return limitKinds[l].name }

// Bytes reports whether a limit is a number of bytes.
func (l Limit) Bytes() bool { return limitKinds[l].bytes }

// LimitNamed returns the limit with a name.
func LimitNamed(name string) (Limit, bool) {
	i := slices.IndexFunc(limitKinds[:], func(k limitKind) bool { return k.name == name })
	return Limit(max(i, 0)), i >= 0
}

// Value returns n as a value of the limit, where 0 is [Unlimited] if the limit can be. The error lists the possible values.
func (l Limit) Value(n int64) (int64, error) {
	k := limitKinds[l]
	switch {
	case n == 0 && k.free:
		return Unlimited, nil
	case n >= k.least && n <= k.most:
		return n, nil
	}
	values := fmt.Sprintf("%d to %d", k.least, k.most)
	if k.most == math.MaxInt64 {
		values = fmt.Sprintf("%d or more", k.least)
	}
	if k.free {
		values += ", or 0 for no limit"
	}
	return 0, fmt.Errorf("must be %s", values)
}

// Limits has a value for each limit: a positive number, [Unlimited], or 0 if it is not set.
type Limits [limits]int64

// Exceeds reports whether a value of a limit allows more than another.
func Exceeds(a, b int64) bool { return b != Unlimited && (a == Unlimited || a > b) }

// Over returns l, with the limits that are not set taken from other.
func (l Limits) Over(other Limits) Limits {
	for i, n := range l {
		if n != 0 {
			other[i] = n
		}
	}
	return other
}

// Within returns most, lowered to the limits that are set in l.
func (l Limits) Within(most Limits) Limits {
	for i, n := range l {
		if n != 0 && !Exceeds(n, most[i]) {
			most[i] = n
		}
	}
	return most
}

// Beside returns the limits of l that differ from other. The rest is not set.
func (l Limits) Beside(other Limits) Limits {
	for i := range l {
		if l[i] == other[i] {
			l[i] = 0
		}
	}
	return l
}

// Map returns the limits that are set, by name. [Unlimited] is written as 0.
func (l Limits) Map() map[string]int64 {
	m := map[string]int64{}
	for i, n := range l {
		if n != 0 {
			m[Limit(i).String()] = max(n, 0)
		}
	}
	return m
}

// MarshalJSON writes [Limits.Map].
func (l Limits) MarshalJSON() ([]byte, error) { return json.Marshal(l.Map()) }

// UnmarshalJSON is the inverse of MarshalJSON. It ignores unknown names, which a later version may have written.
func (l *Limits) UnmarshalJSON(data []byte) error {
	var m map[string]int64
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	*l = Limits{}
	for name, n := range m {
		kind, known := LimitNamed(name)
		if !known {
			continue
		}
		value, err := kind.Value(n)
		if err != nil {
			return fmt.Errorf("limit %s: %w", name, err)
		}
		l[kind] = value
	}
	return nil
}

// LimitNames returns the names of all limits.
func LimitNames() string {
	names := make([]string, limits)
	for i, k := range limitKinds {
		names[i] = k.name
	}
	return strings.Join(names, ", ")
}

// LiveLimits are the current limits of a box that override the configuration. The zero value overrides no limit. Safe for
// concurrent use.
type LiveLimits struct{ p atomic.Pointer[Limits] }

// Store replaces the limits for everything that is admitted afterwards.
func (l *LiveLimits) Store(now Limits) { l.p.Store(&now) }

// Load returns the limits.
func (l *LiveLimits) Load() Limits {
	if own := l.p.Load(); own != nil {
		return *own
	}
	return Limits{}
}

// Of returns the value of a limit, or all, the value for all boxes, if the box does not override it.
func (l *LiveLimits) Of(limit Limit, all int64) int64 {
	if own := l.p.Load(); own != nil && own[limit] != 0 {
		return own[limit]
	}
	return all
}
