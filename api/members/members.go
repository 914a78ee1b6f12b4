// Package members serves the state of the fleet, and cordons its hosts.
package members

import (
	"context"
	"net/http"
	"reflect"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
)

// Host is this gateway in its fleet. Errors are as in package api.
type Host interface {
	// Fleet returns the hosts of the fleet. If etcd does not answer within a bounded time, they are as last known, and
	// [api.Fleet.Problem] has the reason.
	Fleet(ctx context.Context) (api.Fleet, error)
	// Cordon sets whether a host makes new boxes. The error is an ErrNotFound if no member has this ID, and an ErrUnavailable if etcd does
	// not answer.
	Cordon(ctx context.Context, host string, cordoned bool) error
}

// Endpoints serves the fleet.
type Endpoints struct {
	Host Host // nil: this gateway is in no fleet, and every endpoint answers 404
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/v2/fleet", ID: "getFleet", Summary: "The hosts of the fleet with their states, and this host as it knows itself; 404 without a fleet", Response: reflect.TypeFor[api.Fleet](), Handle: e.fleet},
		{Method: "POST", Path: "/v2/fleet/hosts/{host}/cordon", ID: "cordonHost", Summary: "Have a host of the fleet make no new boxes", Response: reflect.TypeFor[rest.OK](), Handle: e.cordon(true)},
		{Method: "POST", Path: "/v2/fleet/hosts/{host}/uncordon", ID: "uncordonHost", Summary: "Have a host of the fleet make new boxes again", Response: reflect.TypeFor[rest.OK](), Handle: e.cordon(false)},
	}
}

// errNoFleet answers calls to a gateway without a fleet.
var errNoFleet = problem.Refuse(http.StatusNotFound, "this gateway is in no fleet: fleet.name is not set")

func (e *Endpoints) fleet(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	if e.Host == nil {
		return rest.Reply{}, errNoFleet
	}
	state, err := e.Host.Fleet(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	if state.Hosts == nil {
		state.Hosts = []api.FleetHost{}
	}
	return rest.Reply{Body: state}, nil
}

func (e *Endpoints) cordon(cordoned bool) func(http.ResponseWriter, *http.Request) (rest.Reply, error) {
	return func(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
		if e.Host == nil {
			return rest.Reply{}, errNoFleet
		}
		id := r.PathValue("host")
		if err := e.Host.Cordon(r.Context(), id, cordoned); err != nil {
			return rest.Reply{}, err
		}
		what := "host_cordoned"
		if !cordoned {
			what = "host_uncordoned"
		}
		reply := rest.Done()
		reply.Change = &rest.Change{What: map[string]any{what: id}}
		return reply, nil
	}
}
