package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/policy"
)

// offers refuses source addresses that the operator has not listed.
func (s *shared) offers(source policy.Source) error {
	for _, a := range source.Addrs() {
		if !slices.Contains(s.sources, a) {
			return invalidAt("/source_addresses", fmt.Sprintf("%v is not in network.sources of the gateway's configuration", a))
		}
	}
	return nil
}

// SetSource implements the Host of [boxgate/api/settings]. What is open is cut, so that nobody outside sees the box at two
// addresses; nothing is staged, as the record of the box is written at once.
func (p *policies) SetSource(ctx context.Context, id policy.BoxID, source policy.Source) (api.Box, error) {
	if err := p.shared.offers(source); err != nil {
		return api.Box{}, err
	}
	b, err := p.boxes.lock(id)
	if err != nil {
		return api.Box{}, err
	}
	defer b.mu.Unlock()
	in := p.shared.of(b)
	in.source = source
	next, err := in.compile()
	if err != nil {
		return api.Box{}, err
	}
	record := b.record
	record.Source, record.UpdatedAt = source, time.Now()
	nothing := func() error { return nil }
	err = apply(ctx, p.log, change{
		what:    "the source addresses of box " + string(id),
		stage:   nothing,
		enforce: func(ctx context.Context) error { return p.enforce(ctx, b, next) },
		commit: func() error {
			if err := p.store.UpdateBox(record); err != nil {
				return err
			}
			b.record = record
			return nil
		},
		abort:  nothing,
		settle: func() (bool, error) { err := p.settleSource(b); return b.record.Source == source, err },
	})
	if err != nil {
		return api.Box{}, err
	}
	b.publish()
	return b.view(), nil
}

// settleSource puts what the store holds of a box in force, its source addresses included. The caller holds b.mu.
func (p *policies) settleSource(b *box) error {
	stored, err := p.store.Box(b.ID)
	if err != nil {
		return errors.Join(err, p.shut(b))
	}
	b.record.Source, b.record.UpdatedAt = stored.Source, stored.UpdatedAt
	return p.settle(b)
}
