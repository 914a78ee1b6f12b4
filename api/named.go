package api

import (
	"boxgate/policy"
	"boxgate/policy/document"
)

// NamedPolicy is a policy with a name. Boxes can follow it, and a change applies to all its followers at the same time.
type NamedPolicy struct {
	Name     string
	Spec     policy.Spec
	Version  uint64 // only grows
	Boxes    []Box  // followers, oldest first
	Warnings []document.Problem

	// Only set by the call that changed the policy:
	Was       policy.Spec // the replaced policy; the zero value for a new name
	Followers []Follower  // whose policies changed
}

// Follower is a box whose policy changed because it follows a named policy.
type Follower struct {
	Box     policy.BoxID
	Was, Is PolicyState
}
