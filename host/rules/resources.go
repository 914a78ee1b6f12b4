package rules

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"boxgate/api"
	apichange "boxgate/api/change"
	"boxgate/api/rest"
	"boxgate/audit/trail"
	"boxgate/policy"
	"boxgate/store"
)

// Bounds of the policies of resources, beside [mostNamed] policies of the operator. One namespace cannot use up the rest.
const (
	mostResources   = 1000
	mostOfNamespace = 64
)

// A namespace may have its policies changed so often in a second, after as many at once as it may have policies.
const (
	changesPerSecond = 1
	changesAtOnce    = mostOfNamespace
)

// byResources is the author of changes that a resource of Kubernetes made, in the histories of boxes and in the audit trail. As its ID is
// like that of an API key, these changes have a share of the trail, and displace no others from it.
const byResources = "kubernetes"

// changeRates bounds the changes of each namespace, so that no tenant keeps the gateway, its store and its trail busy. Safe for concurrent use.
// The zero value is ready.
type changeRates struct {
	mu  sync.Mutex
	all map[string]*rate.Limiter
}

// mostRates is the number of namespaces after which the rates begin anew.
const mostRates = 4096

// allow reports whether a namespace may change a policy now.
func (r *changeRates) allow(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil || len(r.all) >= mostRates {
		r.all = map[string]*rate.Limiter{}
	}
	if r.all[namespace] == nil {
		r.all[namespace] = rate.NewLimiter(changesPerSecond, changesAtOnce)
	}
	return r.all[namespace].Allow()
}

// namespaceOf returns the namespace of a pod or resource NAMESPACE/NAME; "" without one.
func namespaceOf(object string) string {
	namespace, _, ok := strings.Cut(object, "/")
	if !ok {
		return ""
	}
	return namespace
}

// specFor is specOf for a sandbox that begins to follow the policy; attached is nil for a launched box. The policy of a resource is for
// the pods of its namespace alone, as long as the resource exists, and none begins to follow one of the fleet while this host is fenced.
func (n *namedPolicies) specFor(name, pointer string, attached *store.Attached) (policy.Spec, error) {
	p, known := n.find(name)
	switch {
	case known && p.Fleet != "" && p.Gone:
		return policy.Spec{}, api.Errorf(api.ErrConflict, "the fleet has deleted the named policy %q", name)
	case known && p.Fleet != "" && n.fenced != nil && n.fenced():
		return policy.Spec{}, api.Errorf(api.ErrUnavailable, "no further box follows the named policy %q of the fleet now, because this host is cut off from the fleet and may not have its latest version", name)
	case !known || p.Resource == "":
		return n.specOf(name, pointer)
	}
	if attached == nil || attached.Kind != api.AttachCNI || namespaceOf(p.Resource) == "" || namespaceOf(attached.Pod) != namespaceOf(p.Resource) {
		return policy.Spec{}, api.Errorf(api.ErrConflict, "the named policy %q is that of BoxgatePolicy %s, for pods of its namespace alone", name, p.Resource)
	}
	if p.Gone {
		return policy.Spec{}, api.Errorf(api.ErrConflict, "BoxgatePolicy %s was deleted", p.Resource)
	}
	return p.Spec, nil
}

// Resources returns the resources, NAMESPACE/NAME, with a policy. A deleted one
// has it while boxes follow it.
func (p *Service) Resources() []string {
	var list []string
	for _, named := range p.shared.named.copied() {
		if named.Resource != "" {
			list = append(list, named.Resource)
		}
	}
	slices.Sort(list)
	return list
}

// ApplyResource makes the policy of a resource NAMESPACE/NAME, or replaces it for all boxes that follow it. It has no effect
// if the policy is the same. The error is a [document.InvalidError] if the policy is not valid; after any error all boxes keep the old one.
func (p *Service) ApplyResource(ctx context.Context, resource string, spec policy.Spec) error {
	if named, known := p.shared.named.find(api.ResourceName(resource)); known && named.Resource == resource && !named.Gone && equalSpecs(named.Spec, spec) {
		return nil
	}
	next := store.Policy{Spec: spec, Resource: resource}
	if err := p.shared.named.refusal(api.ResourceName(resource), next); err != nil {
		return err
	}
	if !p.changeRates.allow(namespaceOf(resource)) {
		return api.Errorf(api.ErrLimit, "the policies of namespace %s change too often: this version is applied later", namespaceOf(resource))
	}
	err := p.changeResource(ctx, resource, next)
	if errors.Is(err, api.ErrConflict) { // of a box that follows it: the mistake is not the resource's
		return api.Errorf(api.ErrConflict, "%s", err.Error())
	}
	return err
}

// CloseResource ends the policy of a deleted resource: it becomes deny-all for the boxes that follow it, and no further box may follow.
// Without followers it is removed.
func (p *Service) CloseResource(ctx context.Context, resource string) error {
	named, known := p.shared.named.find(api.ResourceName(resource))
	if !known || named.Resource != resource {
		return nil
	}
	was, err := p.DeleteNamedPolicy(ctx, api.ResourceName(resource), nil)
	switch followed := errors.Is(err, api.ErrConflict); {
	case err == nil:
		p.recordResource(resource, "BoxgatePolicy "+resource+" was deleted", apichange.OfNamedDeleted(was))
		return nil
	case !followed:
		return err
	case named.Gone:
		return nil
	}
	return p.changeResource(ctx, resource, store.Policy{Spec: policy.Spec{Mode: policy.ModeDenyAll}, Resource: resource, Gone: true})
}

// changeResource changes the policy of a resource, and records it in the audit trail.
func (p *Service) changeResource(ctx context.Context, resource string, next store.Policy) error {
	ctx = api.WithCaller(ctx, api.Caller{Key: byResources, Name: byResources})
	after, err := p.replaceNamed(ctx, api.ResourceName(resource), nil, next)
	if err != nil {
		return err
	}
	note := "BoxgatePolicy " + resource
	if next.Gone {
		note += " was deleted"
	}
	p.recordResource(resource, note, apichange.OfNamed(after))
	return nil
}

// refusal is [mayHold] for the current policies. It does not copy them, because the cluster may have any number of resources to refuse.
func (n *namedPolicies) refusal(name string, next store.Policy) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return mayHold(n.all, name, next)
}

// mayHold refuses a named policy whose name has another owner, and a new one beyond the bounds.
func mayHold(all map[string]store.Policy, name string, next store.Policy) error {
	if old, known := all[name]; known {
		if old.Fleet != "" && next.Fleet == "" {
			return errOfFleet(name)
		}
		if old.Resource != next.Resource {
			return api.Errorf(api.ErrConflict, "the named policy %q exists, and is not that of BoxgatePolicy %s", name, next.Resource)
		}
		return nil
	}
	own, resources, siblings := 0, 0, 0
	for _, p := range all {
		switch {
		case p.Fleet != "":
			continue
		case p.Resource == "":
			own++
			continue
		case namespaceOf(p.Resource) == namespaceOf(next.Resource):
			siblings++
		}
		resources++
	}
	switch {
	case next.Resource == "" && own >= mostNamed:
		return api.Errorf(api.ErrConflict, "there are at most %d named policies; delete some", mostNamed)
	case next.Resource != "" && siblings >= mostOfNamespace:
		return api.Errorf(api.ErrConflict, "a gateway has at most %d policies of one namespace", mostOfNamespace)
	case next.Resource != "" && resources >= mostResources:
		return api.Errorf(api.ErrConflict, "a gateway has at most %d policies of resources", mostResources)
	}
	return nil
}

// equalSpecs compares policies as they are written.
func equalSpecs(a, b policy.Spec) bool {
	left, err := json.Marshal(a)
	if err != nil {
		return false
	}
	right, err := json.Marshal(b)
	return err == nil && bytes.Equal(left, right)
}

// recordResource writes a change by a resource to the audit trail, with an entry for each box whose policy changed.
func (p *Service) recordResource(resource, note string, change *rest.Change) {
	var list []trail.Entry
	for _, c := range append([]rest.Change{*change}, change.Also...) {
		data, err := json.Marshal(c.What)
		if err != nil {
			continue
		}
		list = append(list, trail.Entry{Kind: trail.Policy, Box: c.Box, PolicyVersion: c.PolicyVersion, KeyID: byResources, Key: byResources, Change: trail.Change{RawMessage: data}, Note: note})
	}
	if _, err := p.trail.AppendAll(list); err != nil {
		p.log.Error("the change of a named policy by a resource is not in the audit trail", zap.String("resource", resource), zap.Error(err))
	}
}
