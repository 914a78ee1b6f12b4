package quota

import (
	"fmt"
	"time"
)

// Values of [Holder].Type.
const (
	APIKey  = "API key"
	Box     = "box"
	Network = "network" // of unauthenticated clients
)

// Holder is an owner of quotas. Two holders are the same if Type and ID are equal; the other fields may change.
type Holder struct {
	Type string // such as APIKey; a namespace for IDs
	ID   string
	Name string // for messages; empty: the ID
	// Operator: the holder has no individual limits.
	Operator bool
}

// String names a holder in messages.
func (h Holder) String() string {
	name := h.Name
	if name == "" {
		name = h.ID
	}
	return h.Type + " " + name
}

// Error reports that a quota is used up. The API answers it with 429.
type Error struct {
	Holder Holder
	Kind   Kind
	Used   int64 // the usage of the holder
	Limit  int64 // of the holder; with Shared of all holders except the operator, or of all if the holder is the operator
	Shared bool  // the total is used up, not the quota of the holder
	// After is when to try again: an estimate if other holders have to release something.
	After time.Duration
}

// Error returns the quota, its limit and the remedy.
func (e *Error) Error() string {
	t := traitsOf[e.Kind]
	if e.Shared {
		return fmt.Sprintf("there is no room for more from %s: all keys together may have %s %s (the total of quotas.%s), and it has %s of them; try again later",
			e.Holder, e.Kind.Amount(e.Limit), t.noun, e.Kind, e.Kind.Amount(e.Used))
	}
	most := "as many as it may"
	if e.Used < e.Limit || e.Kind.InBytes() {
		most = "and may have " + e.Kind.Amount(e.Limit)
	}
	return fmt.Sprintf("%s has %s %s, %s (quotas.%s); %s, or have the operator raise it",
		e.Holder, e.Kind.Amount(e.Used), t.noun, most, e.Kind, t.remedy)
}
