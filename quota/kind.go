package quota

import (
	"fmt"
	"slices"
	"time"
)

// Kind is a resource that holders have quotas of.
type Kind uint8

// The kinds. Kinds up to Commands are taken and released. Kinds up to Secrets are counted from state when a request would
// increase them. Certificates is a rate.
const (
	Connections   Kind = iota // open connections to the admin API that have presented a key
	Memory                    // bytes of bodies that are read whole, and of answers that are buffered
	Requests                  // running requests, including streams and sessions
	Commands                  // running commands in boxes
	Boxes                     // boxes that exist
	Snapshots                 // snapshots that exist
	SnapshotBytes             // their size on disk
	URLs                      // public URLs that exist
	Domains                   // own domains of public URLs
	Schedules                 // schedules that exist
	Secrets                   // secrets that it has stored
	Certificates              // certificates ordered per hour
	kinds
)

// traits describe a kind in texts.
type traits struct {
	name   string // in the configuration, the API and the metrics
	noun   string // after a number
	remedy string // the remedy for a refused client
	unit   string // "bytes" for a number of bytes
}

var traitsOf = [kinds]traits{
	Connections:   {"connections", "connections open", "close one", ""},
	Memory:        {"memory", "of bodies and answers in memory", "wait until a request has ended, or send and ask for less at a time", "bytes"},
	Requests:      {"requests", "requests under way", "wait for one to end", ""},
	Commands:      {"commands", "commands under way", "wait for one to end", ""},
	Boxes:         {"boxes", "boxes", "delete one", ""},
	Snapshots:     {"snapshots", "snapshots", "delete one", ""},
	SnapshotBytes: {"snapshot_bytes", "of snapshots", "delete one", "bytes"},
	URLs:          {"urls", "public URLs", "delete one", ""},
	Domains:       {"domains", "domains of its own", "delete a public URL that has one", ""},
	Schedules:     {"schedules", "schedules", "delete one", ""},
	Secrets:       {"secrets", "secrets", "delete one", ""},
	Certificates:  {"certificates_per_hour", "certificates ordered within an hour", "wait", ""},
}

// String returns the name of a kind in the configuration, the API and the metrics.
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return traitsOf[k].name
}

// Kinds returns all kinds.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// Names returns the names of all kinds.
func Names() []string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, k.String())
	}
	return names
}

// KindByName returns the kind with a name.
func KindByName(name string) (Kind, bool) {
	i := slices.IndexFunc(traitsOf[:], func(t traits) bool { return t.name == name })
	return Kind(max(i, 0)), i >= 0
}

// InBytes reports whether a quota is a number of bytes.
func (k Kind) InBytes() bool { return traitsOf[k].unit == "bytes" }

// Counted reports whether a kind is counted from state, see [Book.Reserve].
func (k Kind) Counted() bool { return k >= Boxes && k <= Secrets }

// Amount formats a number of a kind, bytes with a unit.
func (k Kind) Amount(n int64) string {
	if !k.InBytes() {
		return fmt.Sprint(n)
	}
	for _, u := range []struct {
		name string
		size int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.size {
			return fmt.Sprintf("%.4g %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Limits has a limit for each kind; 0 means not set.
type Limits [kinds]int64

// WithDefaults returns the limits of l, or of lower where a limit of l is not set.
func (l Limits) WithDefaults(lower Limits) Limits {
	for k, n := range l {
		if n == 0 {
			l[k] = lower[k]
		}
	}
	return l
}

// Map returns the limits that are set, by name; nil if l is empty.
func (l Limits) Map() map[string]int64 {
	var out map[string]int64
	for _, k := range Kinds() {
		if l[k] != 0 {
			if out == nil {
				out = map[string]int64{}
			}
			out[k.String()] = l[k]
		}
	}
	return out
}

// LimitsFromMap is the inverse of [Limits.Map]. Unknown names are left out, because a later version may have written them.
func LimitsFromMap(m map[string]int64) Limits {
	var l Limits
	for name, n := range m {
		if k, ok := KindByName(name); ok {
			l[k] = n
		}
	}
	return l
}

// Max is the largest limit that can be set for a kind: anything above it must be a mistake.
func (k Kind) Max() int64 {
	if k.InBytes() {
		return 1 << 50
	}
	return 1_000_000
}

// window is the period of a rate.
const window = time.Hour
