package store

import (
	"boxgate/policy"
	"boxgate/store/layout"
)

// slot is the place of one document that is changed in two steps.
type slot struct {
	label  string // in errors
	bucket []byte // where it is committed
	owner  string // key in bucket
	staged string // key among the staged documents
	sealed bool   // encrypted for its place
}

// stagedHeaders is the prefix of the keys of staged header rules. Keys of staged policies are the ID of a box, or
// [layout.Named] and a name; neither can contain NUL.
const stagedHeaders = "headers\x00"

func policySlot(id policy.BoxID) slot {
	return slot{label: "policy of box " + string(id), bucket: layout.Policies, owner: string(id), staged: string(id)}
}

// namedSlot is the slot of a named policy.
func namedSlot(name string) slot {
	key := layout.Named + name
	return slot{label: "named policy " + name, bucket: layout.Policies, owner: key, staged: key}
}

// headerSlot is the slot of the header rules of a box, or of all boxes ([layout.Global]).
func headerSlot(owner string) slot {
	return slot{label: "header rules of " + owner, bucket: layout.Headers, owner: owner, staged: stagedHeaders + owner, sealed: true}
}
