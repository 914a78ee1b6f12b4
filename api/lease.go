package api

import "time"

// LeaseEntry names a lease: a box has at most one of each.
type LeaseEntry struct {
	Allow bool   // else it denies
	Entry string // a domain or CIDR as in a policy
}

// Lease is an entry of a policy that ends by itself.
type Lease struct {
	LeaseEntry
	StartedAt, ExpiresAt time.Time
	// Left is how much longer it lasts, on a clock that nobody sets.
	Left time.Duration
	// Idle says why it has no effect beside the policy; only in the answer that made it.
	Idle string
}

// LeaseRequest asks for leases. One that runs is replaced.
type LeaseRequest struct {
	Allow   bool
	Entries []string
	Lasts   time.Duration // more than 0
}
