package apitest

import (
	"context"
	"slices"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/api/problem"
)

// Fleet is a fleet in memory. It implements the Host of [boxgate/api/members]. Safe for concurrent use.
type Fleet struct {
	mu    sync.Mutex
	state api.Fleet
	fail  error
}

// NewFleet returns a fleet of three hosts: aaaaaa, which is this one, bbbbbb, and cccccc, whose gateway does not run. Their names are text.
func NewFleet(text string) *Fleet {
	now := time.Now().UTC()
	return &Fleet{state: api.Fleet{
		Name: "test", ID: "1", Founded: now, Revision: 12,
		Hosts: []api.FleetHost{
			{ID: "aaaaaa", Name: text, State: api.HostRunning, Joined: now, Present: true, Version: text, Boxes: 2, Since: now, Address: "192.0.2.1:8700", Ingress: "192.0.2.1:443"},
			{ID: "bbbbbb", Name: text, State: api.HostRunning, Joined: now, Present: true, Version: text, Boxes: 3, Since: now, Answered: now, Unreachable: true},
			{ID: "cccccc", Name: text, State: api.HostAway, Joined: now, Problem: text},
		},
		Own: &api.OwnHost{Host: "aaaaaa", LeaseSeconds: 12.5, Revision: 12, Current: now, Listings: 1, Certificate: now.Add(time.Hour)},
	}}
}

// Cut makes etcd not answer from now on, with a reason.
func (f *Fleet) Cut(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Problem, f.state.Revision = reason, 0
	f.state.Own.Fenced, f.state.Own.Problem = true, reason
	for i := range f.state.Hosts {
		f.state.Hosts[i].State, f.state.Hosts[i].Present = api.HostUnknown, false
	}
	f.fail = api.Errorf(api.ErrUnavailable, "etcd does not answer")
}

// Fleet implements the Host of [boxgate/api/members].
func (f *Fleet) Fleet(context.Context) (api.Fleet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state, own := f.state, *f.state.Own
	state.Hosts, state.Own = slices.Clone(state.Hosts), &own
	return state, nil
}

// Cordon implements the Host of [boxgate/api/members].
func (f *Fleet) Cordon(_ context.Context, host string, cordoned bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	i := slices.IndexFunc(f.state.Hosts, func(h api.FleetHost) bool { return h.ID == host })
	if i < 0 {
		return api.Errorf(api.ErrNotFound, "the fleet has no host with the ID %q", problem.Clip(host))
	}
	h := &f.state.Hosts[i]
	if h.Cordoned = cordoned; h.Present {
		h.State = api.HostRunning
		if cordoned {
			h.State = api.HostCordoned
		}
	}
	return nil
}
