package quota

import (
	"fmt"
	"time"
)

// What holders are.
const (
	APIKey  = "API key"
	Box     = "box"
	Network = "network" // of strangers
)

// Holder is who has quotas. Two holders are the same if What and ID are; the rest may change.
type Holder struct {
	What string // such as APIKey; each has IDs of its own
	ID   string
	Name string // for messages; empty: the ID
	// Operator holders have no limits of their own.
	Operator bool
}

// String names a holder in messages.
func (h Holder) String() string {
	name := h.Name
	if name == "" {
		name = h.ID
	}
	return h.What + " " + name
}

// Error refuses what a quota does not allow. The API answers it with 429.
type Error struct {
	Holder Holder
	Kind   Kind
	Used   int64 // the usage of the holder
	Limit  int64 // of the holder; with Shared of all holders that are not the operator, or of all if the holder is
	Shared bool  // the total is used up, not the quota of the holder
	// After is when to try again: a guess where others have to release something.
	After time.Duration
}

// Error says which quota refuses, its limit and the remedy.
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
		e.Holder, e.Kind.Amount(e.Used), t.noun, most, e.Kind, t.way)
}
