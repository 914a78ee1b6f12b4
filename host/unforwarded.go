package host

import (
	"context"

	"boxgate/firewall"
	"boxgate/policy"
)

// unforwarded is the kernel of a gateway whose boxes are in a namespace apart, from which no packet gets out: what a policy
// allows by address goes to the proxy instead.
type unforwarded struct{ *firewall.Firewall }

// Apply implements [enforce.Kernel].
func (u unforwarded) Apply(ctx context.Context, id policy.BoxID, plan policy.KernelPlan) error {
	return u.Firewall.Apply(ctx, id, plan.WithoutForwarding())
}

// ApplyAll implements [enforce.Kernel].
func (u unforwarded) ApplyAll(ctx context.Context, plans []firewall.Plan) []error {
	changed := make([]firewall.Plan, len(plans))
	for i, p := range plans {
		changed[i] = firewall.Plan{Box: p.Box, KernelPlan: p.WithoutForwarding()}
	}
	return u.Firewall.ApplyAll(ctx, changed)
}
