package firewall

import (
	"context"

	"boxgate/policy"
)

// Firewall is the kernel side of the gateway in one network namespace. Safe for concurrent use.
type Firewall struct{ cfg Config }

// Open prepares the namespace.
func Open(ctx context.Context, cfg Config) (*Firewall, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Firewall{cfg: cfg}, nil
}

// AddBox attaches a box.
func (f *Firewall) AddBox(ctx context.Context, a Attachment) error { return errUnknownBox }

// Apply puts a plan in force.
func (f *Firewall) Apply(ctx context.Context, box policy.BoxID, plan policy.KernelPlan) error {
	return errUnknownBox
}

// CutFlows ends connections.
func (f *Firewall) CutFlows(ctx context.Context, box policy.BoxID, keep func(Flow) bool) error {
	return errUnknownBox
}

// RemoveBox takes a box away.
func (f *Firewall) RemoveBox(ctx context.Context, box policy.BoxID) error { return errUnknownBox }

// Prune takes away boxes of an earlier run that were not added again.
func (f *Firewall) Prune(ctx context.Context) error { return errUnknownBox }

// Close stops reporting.
func (f *Firewall) Close() error { return nil }

// Uninstall takes everything away.
func (f *Firewall) Uninstall(ctx context.Context) error { return nil }
