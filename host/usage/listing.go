package usage

import (
	"context"
	"slices"

	"boxgate/api"
	"boxgate/host/meter"
	"boxgate/host/state"
	"boxgate/policy"
)

// Listing lists boxes with their resource usage.
type Listing struct {
	*state.Table
	meter *meter.Meter
}

// NewListing returns a Listing of the boxes in a table.
func NewListing(boxes *state.Table, m *meter.Meter) *Listing { return &Listing{boxes, m} }

// Box implements the Finder of [boxgate/api/rest].
func (l *Listing) Box(_ context.Context, idOrName string) (api.Box, error) {
	b, err := l.Find(policy.BoxID(idOrName))
	if err != nil && idOrName != "" {
		for _, other := range l.All() {
			if other.Name == idOrName {
				b, err = other, nil
			}
		}
	}
	if err != nil {
		return api.Box{}, api.Errorf(api.ErrNotFound, "there is no box %q", idOrName)
	}
	return l.withUsage(b.View(), true), nil
}

// withUsage adds the box's usage. If fresh is set, it reads the kernel's counters first.
func (l *Listing) withUsage(v api.Box, fresh bool) api.Box {
	if fresh {
		l.meter.Refresh(v.ID)
	}
	v.Usage = usageView(l.meter.Of(v.ID))
	return v
}

// Boxes implements the Table of [boxgate/api/boxes].
func (l *Listing) Boxes(_ context.Context, f api.BoxFilter) ([]api.Box, error) {
	var views []api.Box
	for _, b := range l.All() {
		if v := b.View(); f.Label == "" || slices.Contains(v.Labels, f.Label) {
			views = append(views, l.withUsage(v, false))
		}
	}
	return views, nil
}
