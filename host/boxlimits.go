package host

import (
	"context"
	"errors"
	"time"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/store"
)

// ratePace is how often keys without the role admin may change the rates of a box: the kernel's buckets begin full after each change.
const ratePace = time.Second

// SetLimits implements the Host of [boxgate/api/settings]. At no moment is the box held to neither the old nor the new limits. What it has
// beyond a new one stays.
func (p *policies) SetLimits(ctx context.Context, id policy.BoxID, set func(api.BoxLimits) (api.BoxLimits, error)) (api.Box, error) {
	b, err := p.boxes.lock(id)
	if err != nil {
		return api.Box{}, err
	}
	defer b.mu.Unlock()
	next, err := set(api.BoxLimits(b.record.Limits))
	if err != nil {
		return api.Box{}, err
	}
	own := p.boxes.own(next)
	if err := b.mayChangeRates(ctx, own); err != nil {
		return api.Box{}, err
	}
	record := b.record
	record.Limits, record.UpdatedAt = store.BoxLimits(next), time.Now()
	nothing := func() error { return nil }
	err = apply(ctx, p.log, change{
		what:    "the limits of box " + string(id),
		stage:   nothing,
		enforce: func(ctx context.Context) error { return p.net.Limit(ctx, &b.Box, own) },
		commit: func() error {
			if err := p.store.UpdateBox(record); err != nil {
				return err
			}
			b.record = record
			return nil
		},
		abort:  nothing,
		settle: func() (bool, error) { err := p.settleLimits(b); return b.record.Limits == record.Limits, err },
	})
	if err != nil {
		return api.Box{}, err
	}
	b.publish()
	return b.view(), nil
}

// mayChangeRates refuses changes of the rates by keys without the role admin that follow each other too closely. The caller holds b.mu.
func (b *box) mayChangeRates(ctx context.Context, own policy.Limits) error {
	now := b.Limits.Load()
	same := own[policy.LimitSend] == now[policy.LimitSend] && own[policy.LimitReceive] == now[policy.LimitReceive]
	if same || api.CallerOf(ctx).Role == api.RoleAdmin {
		return nil
	}
	if time.Since(b.rated) < ratePace {
		return api.Errorf(api.ErrLimit, "the bytes a second of the box were changed less than %v ago; try again then", ratePace)
	}
	b.rated = time.Now()
	return nil
}

// settleLimits holds a box to the limits that the store has. The caller holds b.mu.
func (p *policies) settleLimits(b *box) error {
	stored, err := p.store.Box(b.ID)
	if err != nil {
		return errors.Join(err, p.shut(b))
	}
	b.record.Limits, b.record.UpdatedAt = stored.Limits, stored.UpdatedAt
	ctx, cancel := begun(context.Background())
	defer cancel()
	if err := p.net.Limit(ctx, &b.Box, p.boxes.own(api.BoxLimits(stored.Limits))); err != nil {
		return errors.Join(err, p.shut(b))
	}
	return nil
}
