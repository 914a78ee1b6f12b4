package apitest

import (
	"context"
	"maps"
	"slices"

	"boxgate/api"
	"boxgate/policy"
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
