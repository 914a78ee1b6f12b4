package api

import "boxgate/policy"

// NamedPolicy is a policy with a name that boxes follow: it is theirs, and changes for all of them at once.
type NamedPolicy struct {
	Name     string
	Spec     policy.Spec
	Version  uint64 // only grows
	Boxes    []Box  // that follow it, oldest first
	Warnings []policy.Problem
}
