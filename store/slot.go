package store

import (
	"boxgate/policy"
	"boxgate/store/layout"
)

// slot is the place of one document that is changed in two steps.
type slot struct {
	what   string // in errors
	bucket []byte // where it is committed
	owner  string // its key there
	staged string // its key among those staged
	sealed bool   // bound to the place it is in
}

// stagedHeaders is the prefix of the keys of staged header rules. The keys of staged policies are only the ID of a box or, after
// [layout.Named], a name, which cannot contain NUL.
const stagedHeaders = "headers\x00"

func policySlot(id policy.BoxID) slot {
	return slot{what: "policy of box " + string(id), bucket: layout.Policies, owner: string(id), staged: string(id)}
}

// namedSlot is that of a named policy.
func namedSlot(name string) slot {
	key := layout.Named + name
	return slot{what: "named policy " + name, bucket: layout.Policies, owner: key, staged: key}
}

// headerSlot is that of the header rules of a box, or of every box ([Global]).
func headerSlot(owner string) slot {
	return slot{what: "header rules of " + owner, bucket: layout.Headers, owner: owner, staged: stagedHeaders + owner, sealed: true}
}
