package apitest

import (
	"context"
	"maps"
	"slices"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/document"
)

func noNamed(name, pointer string) error {
	return &document.InvalidError{Problems: []document.Problem{{Pointer: pointer, Message: "there is no named policy " + name}}}
}

// NamedPolicies implements the Host of [boxgate/api/rules].
func (h *Host) NamedPolicies(context.Context) ([]api.NamedPolicy, error) {
	leave, err := h.beginCall()
	defer leave()
	var list []api.NamedPolicy
	for _, name := range slices.Sorted(maps.Keys(h.Named)) {
		list = append(list, h.withFollowers(h.Named[name]))
	}
	return list, err
}

func (h *Host) withFollowers(n api.NamedPolicy) api.NamedPolicy {
	for _, id := range slices.Sorted(maps.Keys(h.ByID)) {
		if b := h.ByID[id]; b.Policy.Named == n.Name {
			n.Boxes = append(n.Boxes, b.Box)
		}
	}
	return n
}

// SetNamedPolicy implements the Host of [boxgate/api/rules].
func (h *Host) SetNamedPolicy(_ context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error) {
	leave, err := h.beginCall()
	defer leave()
	old := h.Named[name]
	if err == nil && ifMatch != nil && *ifMatch != old.Version {
		err = api.ErrPrecondition
	}
	if err != nil {
		return api.NamedPolicy{}, err
	}
	if h.Named == nil {
		h.Named = map[string]api.NamedPolicy{}
	}
	h.Named[name] = api.NamedPolicy{Name: name, Spec: spec, Version: old.Version + 1}
	var changed []api.Follower
	for _, b := range h.ByID {
		if b.Policy.Named == name {
			was := b.Policy
			b.Policy.Spec, b.Policy.Version = spec, b.Policy.Version+1
			changed = append(changed, api.Follower{Box: b.ID, Was: was, Is: b.Policy})
		}
	}
	n := h.withFollowers(h.Named[name])
	n.Was, n.Followers = old.Spec, changed
	return n, nil
}

// DeleteNamedPolicy implements the Host of [boxgate/api/rules].
func (h *Host) DeleteNamedPolicy(_ context.Context, name string, ifMatch *uint64) (api.NamedPolicy, error) {
	leave, err := h.beginCall()
	defer leave()
	n, known := h.Named[name]
	switch {
	case err != nil:
		return n, err
	case !known:
		return n, api.ErrNotFound
	case ifMatch != nil && *ifMatch != n.Version:
		return n, api.ErrPrecondition
	case len(h.withFollowers(n).Boxes) > 0:
		return n, api.Errorf(api.ErrConflict, "boxes follow it")
	}
	delete(h.Named, name)
	return n, nil
}
