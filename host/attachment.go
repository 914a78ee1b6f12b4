package host

import (
	"boxgate/api"
	"boxgate/host/foreign"
)

// attachment is what an attached box is attached to.
type attachment struct {
	foreign.Sandbox
	turn uint64 // how often it has changed
}

// follows notes what the box is attached to now; pin is "" if that has no network namespace. The caller holds b.mu.
func (b *box) follows(pin string) {
	a := b.record.Attached
	next := &attachment{Sandbox: foreign.Sandbox{Kind: a.Kind, Ref: a.Ref, Container: a.Container, Pin: pin}}
	if last := b.sandbox.Load(); last != nil {
		next.turn = last.turn + 1
	}
	b.sandbox.Store(next)
}

// showGone shows that the box's sandbox has no network namespace. The caller holds b.mu.
func (b *box) showGone(problem string) {
	b.status, b.problem = api.StatusGone, problem
	b.publish()
}
