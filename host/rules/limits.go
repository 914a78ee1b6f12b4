package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/host/change"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/store"
)

const (
	// rateInterval is the minimum time between two rate changes of a box by keys without the role admin.
	rateInterval = time.Second
	// The token bucket for received bytes starts full after each change, with receiveBurst bytes (at high rates, 1/200 s
	// worth). mayChangeRates spaces changes so that repeated ones gain at most 1/receiveGain of the operator's rate.
	receiveBurst, receiveGain = 128 << 10, 16
)

// SetLimits implements the Host of [boxgate/api/settings]. At every moment either the old or the new limits apply.
// Resources that a box holds beyond a new limit are not taken away.
func (p *Service) SetLimits(ctx context.Context, id policy.BoxID, set func(api.BoxLimits) (api.BoxLimits, error)) (api.Box, error) {
	b, err := p.boxes.Lock(id)
	if err != nil {
		return api.Box{}, err
	}
	defer b.Unlock()
	next, err := set(api.BoxLimits(b.Record.Limits))
	if err != nil {
		return api.Box{}, err
	}
	own := p.boxes.EffectiveLimits(next)
	if err := mayChangeRates(ctx, b, own, next.Operator.Over(p.boxes.Limits)); err != nil {
		return api.Box{}, err
	}
	record := b.Record
	record.Limits, record.UpdatedAt = store.BoxLimits(next), time.Now()
	nothing := func() error { return nil }
	err = change.Apply(ctx, p.log, change.Change{
		What:    "the limits of box " + string(id),
		Stage:   nothing,
		Enforce: func(ctx context.Context) error { return p.net.Limit(ctx, &b.Box, own, next.Operator) },
		Commit: func() error {
			if err := p.records.Update(record); err != nil {
				return err
			}
			b.Record = record
			return nil
		},
		Abort:       nothing,
		ApplyStored: func() (bool, error) { err := p.applyStoredLimits(b); return b.Record.Limits == record.Limits, err },
	})
	if err != nil {
		return api.Box{}, err
	}
	b.Publish()
	return b.View(), nil
}

// mayChangeRates refuses rate changes in quick succession by keys without the role admin. given is the operator's limits
// for the box. The caller holds the lock of b.
func mayChangeRates(ctx context.Context, b *state.Box, own, given policy.Limits) error {
	now := b.Limits.Load()
	receives := own[policy.LimitReceive] != now[policy.LimitReceive]
	if !receives && own[policy.LimitSend] == now[policy.LimitSend] || api.CallerOf(ctx).Role == api.RoleAdmin {
		return nil
	}
	pace := rateInterval
	if most := given[policy.LimitReceive]; receives && most > 0 {
		pace = max(pace, time.Duration(receiveBurst*receiveGain*int64(time.Second)/most))
	}
	if time.Since(b.RatesChangedAt) < pace {
		return api.Errorf(api.ErrLimit, "the bytes a second of the box were changed less than %v ago; try again then", pace)
	}
	b.RatesChangedAt = time.Now()
	return nil
}

// applyStoredLimits applies the stored limits of a box. The caller holds the lock of b.
func (p *Service) applyStoredLimits(b *state.Box) error {
	stored, err := p.records.Get(b.ID)
	if err != nil {
		return errors.Join(err, p.closeBox(b))
	}
	b.Record.Limits, b.Record.UpdatedAt = stored.Limits, stored.UpdatedAt
	ctx, cancel := change.Detach(context.Background())
	defer cancel()
	if err := p.net.Limit(ctx, &b.Box, p.boxes.EffectiveLimits(api.BoxLimits(stored.Limits)), stored.Limits.Operator); err != nil {
		return errors.Join(err, p.closeBox(b))
	}
	return nil
}

// CheckSource returns an error if source has addresses that are not listed in network.sources.
func (s *Shared) CheckSource(source policy.Source) error {
	for _, a := range source.Addrs() {
		if !slices.Contains(s.sources, a) {
			return change.InvalidAt("/source_addresses", fmt.Sprintf("%v is not in network.sources of the gateway's configuration", a))
		}
	}
	return nil
}

// SetSource implements the Host of [boxgate/api/settings]. It cuts open connections, so that servers never see the box at
// two addresses. The box's record is written directly; there is no staging.
func (p *Service) SetSource(ctx context.Context, id policy.BoxID, source policy.Source) (api.Box, error) {
	if err := p.shared.CheckSource(source); err != nil {
		return api.Box{}, err
	}
	b, err := p.boxes.Lock(id)
	if err != nil {
		return api.Box{}, err
	}
	defer b.Unlock()
	in := p.shared.inputsOf(b)
	in.source = source
	next, err := in.compile()
	if err != nil {
		return api.Box{}, err
	}
	record := b.Record
	record.Source, record.UpdatedAt = source, time.Now()
	nothing := func() error { return nil }
	err = change.Apply(ctx, p.log, change.Change{
		What:    "the source addresses of box " + string(id),
		Stage:   nothing,
		Enforce: func(ctx context.Context) error { return p.Enforce(ctx, b, next) },
		Commit: func() error {
			if err := p.records.Update(record); err != nil {
				return err
			}
			b.Record = record
			return nil
		},
		Abort:       nothing,
		ApplyStored: func() (bool, error) { err := p.applyStoredSource(b); return b.Record.Source == source, err },
	})
	if err != nil {
		return api.Box{}, err
	}
	b.Publish()
	return b.View(), nil
}

// applyStoredSource applies the stored state of a box, including its source addresses. The caller holds the lock of b.
func (p *Service) applyStoredSource(b *state.Box) error {
	stored, err := p.records.Get(b.ID)
	if err != nil {
		return errors.Join(err, p.closeBox(b))
	}
	b.Record.Source, b.Record.UpdatedAt = stored.Source, stored.UpdatedAt
	return p.applyStored(b)
}
