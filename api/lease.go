package api

import "time"

// LeaseEntry identifies a lease. A box has at most one lease per entry.
type LeaseEntry struct {
	Allow bool   // false: deny
	Entry string // a domain or CIDR as in a policy
}

// Lease is a temporary policy entry.
type Lease struct {
	LeaseEntry
	StartedAt, ExpiresAt time.Time
	// Left is the remaining time, measured on the monotonic clock.
	Left time.Duration
	// Idle is why the lease has no effect next to the policy; only set by the call that made it.
	Idle string
}

// LeaseRequest asks for leases. A running lease for the same entry is replaced.
type LeaseRequest struct {
	Allow   bool
	Entries []string
	Lasts   time.Duration // more than 0
}
