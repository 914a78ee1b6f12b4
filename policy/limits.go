package policy

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
)

// Limit is a bound on what one box can take of the gateway. The configuration sets each for all boxes, and a box can have others.
type Limit uint8

// The limits that a box can have of its own.
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

// Unlimited is the value of a limit that bounds nothing. Only some can be unlimited.
const Unlimited = -1

// limitKind is what is fixed about a limit.
type limitKind struct {
	name        string // of its key in the configuration
	least, most int64
	free        bool // it can be unlimited, which is written as 0
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
	// What one connection still works with, and 100 Gbit/s.
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

// LimitNamed returns the limit of a name.
func LimitNamed(name string) (Limit, bool) {
	i := slices.IndexFunc(limitKinds[:], func(k limitKind) bool { return k.name == name })
	return Limit(max(i, 0)), i >= 0
}

// Value returns n as a value of the limit, in which 0 is written for none where there can be none, or says which values there are.
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

// Limits has a value for each limit: a positive number, [Unlimited], or 0 where none is set.
type Limits [limits]int64

// Exceeds reports whether a value of a limit allows more than another.
func Exceeds(a, b int64) bool { return b != Unlimited && (a == Unlimited || a > b) }

// Over returns the limits that are set in l, and those of other for the rest.
func (l Limits) Over(other Limits) Limits {
	for i, n := range l {
		if n != 0 {
			other[i] = n
		}
	}
	return other
}

// Within returns l, where it is set and allows no more than most, and most elsewhere.
func (l Limits) Within(most Limits) Limits {
	for i, n := range l {
		if n != 0 && !Exceeds(n, most[i]) {
			most[i] = n
		}
	}
	return most
}

// Beside returns the limits that differ from those of other.
func (l Limits) Beside(other Limits) Limits {
	for i := range l {
		if l[i] == other[i] {
			l[i] = 0
		}
	}
	return l
}

// Map returns the limits that are set by their names. 0 is written for [Unlimited].
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

// UnmarshalJSON reads what MarshalJSON has written. Names that are not known are left out: a later version may have written them.
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

// LiveLimits are the limits that a box has of its own at present. The zero value has none. Safe for concurrent use.
type LiveLimits struct{ p atomic.Pointer[Limits] }

// Store replaces the limits, for everything that is admitted from then on.
func (l *LiveLimits) Store(now Limits) { l.p.Store(&now) }

// Load returns the limits.
func (l *LiveLimits) Load() Limits {
	if own := l.p.Load(); own != nil {
		return *own
	}
	return Limits{}
}

// Of returns the value of a limit, or of all boxes' where the box has none of its own.
func (l *LiveLimits) Of(limit Limit, all int64) int64 {
	if own := l.p.Load(); own != nil && own[limit] != 0 {
		return own[limit]
	}
	return all
}
