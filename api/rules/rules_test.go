package rules_test

import (
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/history"
	"boxgate/api/rules"
	"boxgate/policy"
)

// fixture serves the endpoints of this package.
type fixture struct {
	*apitest.Served
	host    *apitest.Host
	history *history.History
}

// serve serves the endpoints until the test ends. Rules may name the secret "known".
func serve(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{host: apitest.NewHost(t), history: history.New(nil)}
	known := func(name string) bool { return name != "unknown" }
	f.Served = apitest.Serve(t, f.host, (&rules.Endpoints{Boxes: f.host, Host: f.host, History: f.history, Bodies: apitest.Bodies, HasSecret: known}).Routes())
	return f
}

// create makes a box and returns its ID.
func (f *fixture) create(t testing.TB, req api.CreateRequest) string { return f.host.Add(t, req) }

// key makes an API key and returns it.
func (f *fixture) key(t testing.TB, req api.KeyRequest) string {
	t.Helper()
	key, _, err := f.host.CreateAPIKey(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return key.Reveal()
}

// state returns the policy of a box that is in force.
func (f *fixture) state(t testing.TB, id string) api.PolicyState {
	t.Helper()
	state, err := f.host.Policy(t.Context(), policy.BoxID(id))
	if err != nil {
		t.Fatal(err)
	}
	return state
}
