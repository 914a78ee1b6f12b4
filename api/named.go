package api

import (
	"boxgate/policy"
	"boxgate/policy/document"
)

// NamedPolicy is a policy with a name that boxes follow: it is theirs, and changes for all of them at once.
type NamedPolicy struct {
	Name     string
	Spec     policy.Spec
	Version  uint64 // only grows
	Boxes    []Box  // that follow it, oldest first
	Warnings []document.Problem

	// Of the call that has set it:
	Was       policy.Spec // replaced by it; the zero value for a new name
	Followers []Follower  // whose policies it has changed
}

// Follower is a box whose policy has changed with the named one that it follows.
type Follower struct {
	Box     policy.BoxID
	Was, Is PolicyState
}
