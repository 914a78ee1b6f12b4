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
)

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
