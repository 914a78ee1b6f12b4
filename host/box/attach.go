package box

import (
	"bytes"
	"context"

	"boxgate/api"
	"boxgate/dns"
	"boxgate/host/sandboxns"
	"boxgate/policy"
	"boxgate/store"
)

// AttachBox implements the Host of [boxgate/api/boxes]. The namespace is opened once, then checked and pinned through
// that descriptor, so it does not matter if its name is reused a moment later. The box gets a closed interface first,
// then its policy. A failure undoes every step.
func (l *Service) AttachBox(ctx context.Context, req api.AttachRequest) (api.Box, error) {
	var err error
	if req.Policy, err = l.policyOfNew(req.Policy, req.Named); err != nil {
		return api.Box{}, err
	}
	if err := l.shared.CheckSource(req.Source); err != nil {
		return api.Box{}, err
	}
	if err := l.checkNew(req.Name, req.Policy, req.Headers); err != nil {
		return api.Box{}, err
	}
	found, err := sandboxns.Open(ctx, req.Attached, l.firewall.CheckForeign)
	if err != nil {
		return api.Box{}, err
	}
	defer found.NS.Close()
	var search []string
	for _, n := range dns.SearchFromResolvConf(bytes.NewReader(sandboxns.ResolvConf(ctx, found.NS, req.PID))) {
		search = append(search, n.String())
	}
	b, err := l.admit(ctx, api.CreateRequest{Name: req.Name, Labels: req.Labels, Source: req.Source, Limits: req.Limits, Policy: req.Policy, Named: req.Named, Headers: req.Headers},
		&store.Attached{Kind: req.Kind, Ref: req.Ref, Container: found.Container, Stack: req.Stack, Search: search}, origin{})
	if err != nil {
		return api.Box{}, err
	}
	defer b.Unlock()
	p := &provisioning{box: b, foreign: found.NS}
	if err := l.provision(ctx, p, attachSteps); err != nil {
		return api.Box{}, l.discard(b, err)
	}
	b.Follow(p.netns)
	l.follower.Look(b.ID)
	return b.ViewWithWarnings(), nil
}

// DetachBox implements the Host of [boxgate/api/boxes].
func (l *Service) DetachBox(ctx context.Context, id policy.BoxID) error {
	b, err := l.boxes.Find(id)
	if err != nil {
		return err
	}
	if b.Attached == nil {
		return api.Errorf(api.ErrConflict, "box %s was launched here: delete it", id)
	}
	return l.DeleteBox(ctx, id)
}
