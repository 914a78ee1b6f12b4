package peerapi

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/fleet/node"
	"boxgate/fleet/roster"
)

// result is the outcome of a call of this host to another one.
type result int

// The results.
const (
	answered    result = iota // with any status
	unreachable               // no answer
	refused                   // not taken: too many calls are open, or the other host does not know this one as a member
	results
)

// resultNames are the values of the label of the metric.
var resultNames = [results]string{"answered", "unreachable", "refused"}

// refusedError reports a call that the other host did not pass to its API.
type refusedError struct{ why string }

// Error implements error.
func (e *refusedError) Error() string { return e.why }

// resultOf returns the outcome of a call that failed with err.
func resultOf(err error) result {
	if _, ok := errors.AsType[*refusedError](err); ok {
		return refused
	}
	if _, ok := errors.AsType[*problem.Refusal](err); ok { // the host left, or this one is fenced, before the call was sent
		return refused
	}
	return unreachable
}

// experience is the outcome of the latest calls to a host.
type experience struct{ answered, failed time.Time }

// forgetAfter is how long a host without an answer counts as unreachable. It may come back without being called again.
const forgetAfter = 5 * time.Minute

// unreachable reports whether the latest call failed.
func (e experience) unreachable(now time.Time) bool {
	return e.failed.After(e.answered) && now.Sub(e.failed) < forgetAfter
}

// outcomes counts calls. Safe for concurrent use.
type outcomes struct {
	mu     sync.Mutex
	counts [results]uint64
	hosts  map[string]experience // by ID; calls are made to members only, and [Client.forgetOthers] removes hosts that left
}

// add counts a call.
func (o *outcomes) add(host string, r result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[r]++
	e := o.hosts[host]
	switch r {
	case answered:
		e.answered = time.Now()
	case unreachable:
		e.failed = time.Now()
	default:
		return
	}
	o.hosts[host] = e
}

// of returns the experience with a host.
func (o *outcomes) of(host string) experience {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.hosts[host]
}

// forgetOthers forgets hosts that are no members, and counts the unreachable ones of the others.
func (c *Client) forgetOthers() (silent int) {
	known := map[string]bool{}
	for _, h := range c.others() {
		known[h.ID] = true
	}
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	now := time.Now()
	for id, e := range c.calls.hosts {
		switch {
		case !known[id]:
			delete(c.calls.hosts, id)
		case e.unreachable(now):
			silent++
		}
	}
	return silent
}

// The metrics of calls between hosts.
var (
	callsDesc       = prometheus.NewDesc("boxgate_fleet_peer_calls_total", "Calls of this host to other hosts of the fleet, by their results.", []string{"result"}, nil)
	turnedAwayDesc  = prometheus.NewDesc("boxgate_fleet_refused_calls_total", "Calls of other hosts that this host refused: of hosts that are no members any longer, or too many at a time.", nil, nil)
	unreachableDesc = prometheus.NewDesc("boxgate_fleet_unreachable_hosts", "Other hosts of the fleet that did not answer the latest call of this host, less than five minutes ago.", nil, nil)
)

// CountRefused counts a call of another host that was refused here, see [ServerConfig].
func (c *Client) CountRefused() { c.turnedAway.Add(1) }

// Describe implements [prometheus.Collector].
func (c *Client) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements [prometheus.Collector].
func (c *Client) Collect(to chan<- prometheus.Metric) {
	silent := c.forgetOthers()
	c.calls.mu.Lock()
	counts := c.calls.counts
	c.calls.mu.Unlock()
	for r, n := range counts {
		to <- prometheus.MustNewConstMetric(callsDesc, prometheus.CounterValue, float64(n), resultNames[r])
	}
	to <- prometheus.MustNewConstMetric(turnedAwayDesc, prometheus.CounterValue, float64(c.turnedAway.Load()))
	to <- prometheus.MustNewConstMetric(unreachableDesc, prometheus.GaugeValue, float64(silent))
}

// stateFor is how long a state that was read from etcd is shown. A listing of a large fleet is many requests.
const stateFor = time.Second

// lastState is the state of the fleet as etcd last had it.
type lastState struct {
	turn  chan struct{} // held while the state is read
	state roster.State
	err   error     // why it was not read
	at    time.Time // zero: not read yet, or changed since
}

// read returns the state, with from unless it was read within [stateFor], or could not be: callers who wait for their turn do not wait for etcd
// one after the other.
func (l *lastState) read(ctx context.Context, from func(context.Context) (roster.State, error)) (roster.State, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return roster.State{}, ctx.Err()
	}
	if time.Since(l.at) < stateFor {
		return l.state, l.err
	}
	state, err := from(ctx)
	if ctx.Err() == nil {
		l.state, l.err, l.at = state, err, time.Now()
	}
	return state, err
}

// changed makes the next call of read ask etcd.
func (l *lastState) changed(ctx context.Context) {
	select {
	case l.turn <- struct{}{}:
		l.at = time.Time{}
		<-l.turn
	case <-ctx.Done(): // it is shown for [stateFor] at most
	}
}

// Fleet implements [boxgate/api/members.Host].
func (c *Client) Fleet(ctx context.Context) (api.Fleet, error) {
	own := c.fleet.Status()
	state, err := c.last.read(ctx, c.fleet.State)
	if ctx.Err() != nil {
		return api.Fleet{}, ctx.Err()
	}
	view := View(state, &own)
	if err != nil {
		view.Name, view.Problem = c.fleet.Fleet, err.Error()
		for _, h := range c.fleet.LastMembers() {
			view.Hosts = append(view.Hosts, api.FleetHost{ID: h.ID, Name: h.Name, State: api.HostUnknown, Protocol: h.Protocol, Joined: h.Joined, Cordoned: h.Cordoned, Address: h.Address, Ingress: h.Ingress})
		}
	}
	now := time.Now()
	for i := range view.Hosts {
		e := c.calls.of(view.Hosts[i].ID)
		view.Hosts[i].Answered, view.Hosts[i].Unreachable = e.answered.UTC(), e.unreachable(now)
	}
	return view, nil
}

// Cordon implements [boxgate/api/members.Host].
func (c *Client) Cordon(ctx context.Context, host string, cordoned bool) error {
	err := c.fleet.Cordon(ctx, host, cordoned)
	switch {
	case errors.Is(err, roster.ErrNotMember):
		return api.Errorf(api.ErrNotFound, "the fleet has no host with the ID %q", problem.Clip(host))
	case err != nil:
		return &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: "whether the host makes new boxes was not changed: etcd does not answer"}
	}
	c.last.changed(ctx)
	return nil
}

// View describes a fleet as the API and `gateway fleet status --json` show it. own is nil where no gateway runs.
func View(state roster.State, own *node.Status) api.Fleet {
	view := api.Fleet{Name: state.Name, ID: state.ID, Founded: state.Founded, Revision: state.Revision, Hosts: []api.FleetHost{}}
	for _, m := range state.Hosts {
		view.Hosts = append(view.Hosts, api.FleetHost{
			ID: m.ID, Name: m.Name, State: m.Condition(), Protocol: m.Protocol, Joined: m.Joined, Cordoned: m.Cordoned, Present: m.Present, Problem: m.Problem,
			Version: m.Version, Boxes: m.Boxes, Drained: m.Drained, Since: m.Since, Address: m.Address, Ingress: m.Ingress,
		})
	}
	if own != nil {
		view.Own = &api.OwnHost{
			Host: own.Host, Fenced: own.Fenced, Problem: own.Problem, LeaseSeconds: own.LeaseSeconds, Cordoned: own.Cordoned, Revision: own.Revision, Current: own.Current,
			Listings: own.Listings, Certificate: own.Certificate,
		}
	}
	return view
}
