package host

import (
	"context"
	"errors"
	"time"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/store"
)

const (
	// ratePace is how often keys without the role admin may change the rates of a box.
	ratePace = time.Second
	// The bucket of what a box receives begins full after each change, with so many bytes (at high rates, a 200th of a second's worth). By
	// changing it again and again, a key gains a sixteenth of what the operator gives at most.
	receiveBurst, receiveGain = 128 << 10, 16
)

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
	if err := b.mayChangeRates(ctx, own, next.Operator.Over(p.boxes.limits)); err != nil {
		return api.Box{}, err
	}
	record := b.record
	record.Limits, record.UpdatedAt = store.BoxLimits(next), time.Now()
	nothing := func() error { return nil }
	err = apply(ctx, p.log, change{
		what:    "the limits of box " + string(id),
		stage:   nothing,
		enforce: func(ctx context.Context) error { return p.net.Limit(ctx, &b.Box, own, next.Operator) },
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

// mayChangeRates refuses changes of the rates by keys without the role admin that follow each other too closely. given is what the operator
// gives the box. The caller holds b.mu.
func (b *box) mayChangeRates(ctx context.Context, own, given policy.Limits) error {
	now := b.Limits.Load()
	receives := own[policy.LimitReceive] != now[policy.LimitReceive]
	if !receives && own[policy.LimitSend] == now[policy.LimitSend] || api.CallerOf(ctx).Role == api.RoleAdmin {
		return nil
	}
	pace := ratePace
	if most := given[policy.LimitReceive]; receives && most > 0 {
		pace = max(pace, time.Duration(receiveBurst*receiveGain*int64(time.Second)/most))
	}
	if time.Since(b.rated) < pace {
		return api.Errorf(api.ErrLimit, "the bytes a second of the box were changed less than %v ago; try again then", pace)
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
	if err := p.net.Limit(ctx, &b.Box, p.boxes.own(api.BoxLimits(stored.Limits)), stored.Limits.Operator); err != nil {
		return errors.Join(err, p.shut(b))
	}
	return nil
}
