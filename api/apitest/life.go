package apitest

import (
	"context"
	"fmt"
	"time"

	"boxgate/api"
	"boxgate/policy"
)

// PauseBox implements the Host of [boxgate/api/lifecycle].
func (h *Host) PauseBox(_ context.Context, id policy.BoxID) (api.Box, error) {
	return h.setStatus(id, api.StatusPaused)
}

// ResumeBox implements the Host of [boxgate/api/lifecycle].
func (h *Host) ResumeBox(_ context.Context, id policy.BoxID) (api.Box, error) {
	return h.setStatus(id, api.StatusIdle)
}

func (h *Host) setStatus(id policy.BoxID, s api.Status) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	b.Status = s
	return b.Box, nil
}

// SetInitCommand implements the Host of [boxgate/api/lifecycle].
func (h *Host) SetInitCommand(_ context.Context, id policy.BoxID, command string) error {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil {
		b.InitCommand = command
	}
	return err
}

// AttachBox implements the Host of [boxgate/api/boxes].
func (h *Host) AttachBox(_ context.Context, req api.AttachRequest) (api.Box, error) {
	leave, err := h.beginCall()
	defer leave()
	if err != nil {
		return api.Box{}, err
	}
	for _, b := range h.ByID {
		if req.Name != "" && b.Name == req.Name {
			return api.Box{}, api.Errorf(api.ErrConflict, "a box named %q exists already", req.Name)
		}
	}
	id := policy.BoxID(fmt.Sprintf("attached%d", len(h.ByID)))
	box := api.Box{ID: id, Name: req.Name, Labels: req.Labels, Status: api.StatusIdle, Attached: &req.Attached, Limits: req.Limits, EffectiveLimits: req.Limits.Effective(h.HostLimits()).Beside(h.HostLimits()), Policy: api.PolicyState{Spec: req.Policy, Version: 1}}
	h.ByID[id] = &Box{Box: box, Rules: api.HeaderState{Rules: req.Headers, Version: 1}, URLs: map[uint16]api.URL{}}
	return box, nil
}

// ReattachBox implements the Host of [boxgate/api/boxes].
func (h *Host) ReattachBox(_ context.Context, id policy.BoxID, to *api.Attached) (api.Box, error) {
	b, leave, err := h.box(id)
	defer leave()
	switch {
	case err != nil:
		return api.Box{}, err
	case b.Attached == nil:
		return api.Box{}, api.Errorf(api.ErrConflict, "launched here")
	case to != nil:
		b.Attached = to
	}
	return b.Box, nil
}

// DetachBox implements the Host of [boxgate/api/boxes].
func (h *Host) DetachBox(_ context.Context, id policy.BoxID) error {
	b, leave, err := h.box(id)
	defer leave()
	if err == nil && b.Attached == nil {
		err = api.Errorf(api.ErrConflict, "launched here")
	}
	if err == nil {
		delete(h.ByID, id)
	}
	return err
}

// SelfTest returns a report with the probes set by the test.
func (h *Host) SelfTest(_ context.Context, id policy.BoxID) (api.SelfTestReport, error) {
	b, leave, err := h.box(id)
	defer leave()
	if err != nil {
		return api.SelfTestReport{}, err
	}
	return api.SelfTestReport{
		Box: b.ID, Mode: b.Policy.Spec.Mode, Version: b.Policy.Version, Started: time.Unix(1_700_000_000, 0),
		Duration: 1500 * time.Millisecond, Probes: h.Probes,
	}, nil
}
