package state

import (
	"boxgate/api"
	"boxgate/host/sandboxns"
)

// Attachment is the sandbox that a box is attached to.
type Attachment struct {
	sandboxns.Sandbox
	Turn uint64 // number of changes so far
}

// Follow updates Sandbox from the record. pin is the path of the pinned network namespace, "" if the sandbox has lost it. The
// caller holds the lock of b.
func (b *Box) Follow(pin string) {
	a := b.Record.Attached
	next := &Attachment{Sandbox: sandboxns.Sandbox{Kind: a.Kind, Ref: a.Ref, Container: a.Container, Pin: pin}}
	if last := b.Sandbox.Load(); last != nil {
		next.Turn = last.Turn + 1
	}
	b.Sandbox.Store(next)
}

// ShowGone shows that the box's sandbox has no network namespace. The caller holds the lock of b.
func (b *Box) ShowGone(problem string) {
	b.Status, b.Problem = api.StatusGone, problem
	b.Publish()
}
