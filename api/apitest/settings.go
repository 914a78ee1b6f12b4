package apitest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/api/schedules"
	"boxgate/llm"
	"boxgate/policy"
	"boxgate/policy/document"
	"boxgate/policy/name"
)

// Environment implements the Host of [boxgate/api/settings].
func (h *Host) Environment(context.Context) (map[string]name.Secret, error) {
	leave, err := h.beginCall()
	defer leave()
	return maps.Clone(h.Env), err
}

// SetEnvironment implements the Host of [boxgate/api/settings].
func (h *Host) SetEnvironment(_ context.Context, vars map[string]name.Secret) error {
	leave, err := h.beginCall()
	defer leave()
	if err == nil {
		h.Env = maps.Clone(vars)
	}
	return err
}

// SetVariable implements the Host of [boxgate/api/settings].
func (h *Host) SetVariable(_ context.Context, name string, value name.Secret) error {
	leave, err := h.beginCall()
	defer leave()
	if err == nil {
		h.Env[name] = value
	}
	return err
}

// DeleteVariable implements the Host of [boxgate/api/settings].
func (h *Host) DeleteVariable(_ context.Context, name string) error {
	leave, err := h.beginCall()
	defer leave()
	if _, ok := h.Env[name]; !ok && err == nil {
		err = api.Errorf(api.ErrNotFound, "there is no variable %q", name)
	}
	if err == nil {
		delete(h.Env, name)
	}
	return err
}

// Configure implements the Host of [boxgate/api/settings].
func (h *Host) Configure(_ context.Context, id policy.BoxID, change func(*api.Configuration) error) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	c := api.Configuration{Labels: slices.Clone(b.Labels), Hosted: b.Hosted}
	c.Hosted.Skills = slices.Clone(c.Hosted.Skills)
	if err := change(&c); err != nil {
		return api.Box{}, err
	}
	b.Labels, b.Hosted = c.Labels, c.Hosted
	return b.Box, nil
}

// SetSource implements the Host of [boxgate/api/settings].
func (h *Host) SetSource(_ context.Context, id policy.BoxID, source policy.Source) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	b.Source = source
	return b.Box, nil
}

// HostModelLimit implements the Boxes of [boxgate/api/settings].
func (*Host) HostModelLimit() llm.Limit { return llm.Limit{Tokens: 1000, Per: llm.PerDay} }

// HostLimits implements the Host of [boxgate/api/settings].
func (h *Host) HostLimits() policy.Limits {
	return policy.Limits{policy.LimitConnections: 100, policy.LimitSend: policy.Unlimited, policy.LimitReceive: 1 << 20, policy.LimitQuota: policy.Unlimited}
}

// SetLimits implements the Host of [boxgate/api/settings].
func (h *Host) SetLimits(_ context.Context, id policy.BoxID, change func(api.BoxLimits) (api.BoxLimits, error)) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	next, err := change(b.Limits)
	if err == nil {
		b.Limits, b.EffectiveLimits = next, next.Effective(h.HostLimits()).Beside(h.HostLimits())
	}
	return b.Box, err
}

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

// errOwner refuses a change of a named policy of the fleet as one of the host, and the reverse.
var errOwner = api.Errorf(api.ErrConflict, "the policy is that of the fleet, or of this host")

// SetNamedPolicy implements the Host of [boxgate/api/rules].
func (h *Host) SetNamedPolicy(_ context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error) {
	return h.setNamed(name, spec, ifMatch, false)
}

// SetFleetPolicy implements the Host of [boxgate/api/rules], for a fleet of one host.
func (h *Host) SetFleetPolicy(_ context.Context, name string, spec policy.Spec, ifMatch *uint64) (api.NamedPolicy, error) {
	return h.setNamed(name, spec, ifMatch, true)
}

func (h *Host) setNamed(name string, spec policy.Spec, ifMatch *uint64, fleet bool) (api.NamedPolicy, error) {
	leave, err := h.beginCall()
	defer leave()
	old, known := h.Named[name]
	if err == nil && known && old.Fleet != fleet {
		err = errOwner
	}
	if err == nil && ifMatch != nil && *ifMatch != old.Version {
		err = api.ErrPrecondition
	}
	if err != nil {
		return api.NamedPolicy{}, err
	}
	if h.Named == nil {
		h.Named = map[string]api.NamedPolicy{}
	}
	h.Named[name] = api.NamedPolicy{Name: name, Spec: spec, Version: old.Version + 1, Fleet: fleet}
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
	return h.deleteNamed(name, ifMatch, false)
}

// DeleteFleetPolicy implements the Host of [boxgate/api/rules].
func (h *Host) DeleteFleetPolicy(_ context.Context, name string, ifMatch *uint64) (api.NamedPolicy, error) {
	return h.deleteNamed(name, ifMatch, true)
}

func (h *Host) deleteNamed(name string, ifMatch *uint64, fleet bool) (api.NamedPolicy, error) {
	leave, err := h.beginCall()
	defer leave()
	n, known := h.Named[name]
	switch {
	case err != nil:
		return n, err
	case !known:
		return n, api.ErrNotFound
	case n.Fleet != fleet:
		return n, errOwner
	case ifMatch != nil && *ifMatch != n.Version:
		return n, api.ErrPrecondition
	case len(h.withFollowers(n).Boxes) > 0:
		return n, api.Errorf(api.ErrConflict, "boxes follow it")
	}
	delete(h.Named, name)
	return n, nil
}

// Schedules implements the Host of [boxgate/api/schedules].
func (h *Host) Schedules(_ context.Context, box policy.BoxID) ([]schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return nil, err
	}
	return b.schedules, nil
}

// AddSchedule implements the Host of [boxgate/api/schedules].
func (h *Host) AddSchedule(_ context.Context, box policy.BoxID, spec schedules.Spec) (schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return schedules.Schedule{}, err
	}
	now := time.Unix(1_700_000_000, 0)
	s := schedules.Schedule{Spec: spec, ID: fmt.Sprintf("sched_%d", len(b.schedules)+1), Box: box, CreatedAt: now, UpdatedAt: now, NextRunAt: now.Add(time.Minute)}
	b.schedules = append(b.schedules, s)
	return s, nil
}

// schedule changes one schedule.
func (h *Host) schedule(box policy.BoxID, id string, change func(*schedules.Schedule) error) (schedules.Schedule, error) {
	b, leave, err := h.box(box)
	defer leave()
	if err != nil {
		return schedules.Schedule{}, err
	}
	for i := range b.schedules {
		if next := b.schedules[i]; next.ID == id {
			err := change(&next)
			if err == nil {
				b.schedules[i] = next
			}
			return next, err
		}
	}
	return schedules.Schedule{}, api.Errorf(api.ErrNotFound, "the box has no such schedule")
}

// ChangeSchedule implements the Host of [boxgate/api/schedules].
func (h *Host) ChangeSchedule(_ context.Context, box policy.BoxID, id string, change func(*schedules.Spec) error) (schedules.Schedule, error) {
	return h.schedule(box, id, func(s *schedules.Schedule) error { return change(&s.Spec) })
}

// PauseSchedule implements the Host of [boxgate/api/schedules].
func (h *Host) PauseSchedule(_ context.Context, box policy.BoxID, id string, paused bool) (schedules.Schedule, error) {
	return h.schedule(box, id, func(s *schedules.Schedule) error { s.Paused = paused; return nil })
}

// DeleteSchedule implements the Host of [boxgate/api/schedules].
func (h *Host) DeleteSchedule(_ context.Context, box policy.BoxID, id string) error {
	_, err := h.schedule(box, id, func(s *schedules.Schedule) error { s.ID = ""; return nil })
	return err
}
