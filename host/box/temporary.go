package box

import (
	"context"
	"os"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/store"
)

// Temporary is a box for a few seconds of a test of the gateway, in a network namespace without processes.
type Temporary struct {
	ID    policy.BoxID
	NetNS string // path of its pinned namespace
}

// temporaryLabel marks temporary boxes in lists.
const temporaryLabel = "boxgate-doctor"

// temporarySteps end before the box is complete. Its record stays in state creating, so the next start of the gateway removes a
// box that was left behind, as it removes every half-made one.
var temporarySteps = []step{
	(*provisioning).compile, (*provisioning).storeInitial, (*provisioning).addAuthority, (*provisioning).pinNamespace,
	(*provisioning).connect, (*provisioning).awaitNetwork,
}

// MakeTemporary makes a temporary box in a network namespace, which only the box's interface may be in. It is enforced like every attached
// box, with the same protected ranges and ceiling, but the global header rules do not apply to it: it would send their secrets. The caller
// removes it by DeleteBox, and keeps ns open until then.
func (l *Service) MakeTemporary(ctx context.Context, ns *os.File, source policy.Source, spec policy.Spec, headers []policy.HeaderRule) (Temporary, error) {
	if err := l.checkNew("", spec, headers); err != nil {
		return Temporary{}, err
	}
	b, err := l.admit(ctx, api.CreateRequest{Labels: []string{temporaryLabel}, Source: source, Policy: spec, Headers: headers}, &store.Attached{Kind: api.AttachNetNS, Ref: "doctor"}, origin{})
	if err != nil {
		return Temporary{}, err
	}
	defer b.Unlock()
	b.Alone = true
	p := &provisioning{box: b, foreign: ns}
	if err := l.provision(ctx, p, temporarySteps); err != nil {
		return Temporary{}, l.discard(b, err)
	}
	return Temporary{b.ID, p.netns}, nil
}
