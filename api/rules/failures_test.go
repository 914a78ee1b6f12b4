package rules_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/history"
	"boxgate/api/rules"
	"boxgate/policy"
)

// TestHostsThatFail: an error of the gateway is answered without its text, and what did not happen is in no log of a box.
func TestHostsThatFail(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	f.host.Fail = errors.New("bolt: /var/lib/secret-path is locked")
	for _, rt := range (&rules.Endpoints{}).Routes() {
		body := rt.Example
		if body == "" && rt.Request != nil {
			t.Fatalf("%s has no example", rt.ID)
		}
		got := f.Call(t, rt.Method, strings.NewReplacer("{id}", id, "{name}", "web").Replace(rt.Path), body)
		if got.StatusCode != 500 || strings.Contains(got.Text, "secret-path") {
			t.Errorf("%s: %s %s", rt.ID, got.Status, got.Text)
		}
	}
	if n := f.Log.FilterMessage("admin request failed").Len(); n != len((&rules.Endpoints{}).Routes()) {
		t.Errorf("%d failures are in the log", n)
	}
	if logs := f.history.Logs(policy.BoxID(id), 0, 100); len(logs) > 0 || len(f.Changes()) > 0 {
		t.Errorf("the box has logged %v", logs)
	}
}

// failing is a host of which some calls fail.
type failing struct {
	*apitest.Host
	reads, writes bool
}

var errBroken = errors.New("broken")

func (h failing) when(fails bool) error {
	if fails {
		return errBroken
	}
	return nil
}

func (h failing) Policy(ctx context.Context, id policy.BoxID) (api.PolicyState, error) {
	s, err := h.Host.Policy(ctx, id)
	return s, errors.Join(err, h.when(h.reads))
}

func (h failing) SetPolicy(ctx context.Context, id policy.BoxID, set api.PolicyChange, match *uint64) (api.PolicyState, error) {
	if h.writes {
		return api.PolicyState{}, errBroken
	}
	return h.Host.SetPolicy(ctx, id, set, match)
}

func (h failing) Network(ctx context.Context, id policy.BoxID) (api.PolicyState, error) {
	s, err := h.Host.Network(ctx, id)
	return s, errors.Join(err, h.when(h.reads))
}

func (h failing) Headers(ctx context.Context, id policy.BoxID) (api.HeaderState, error) {
	s, err := h.Host.Headers(ctx, id)
	return s, errors.Join(err, h.when(h.reads))
}

func (h failing) SetHeaders(ctx context.Context, id policy.BoxID, list []policy.HeaderRule, match *uint64) (api.HeaderState, error) {
	if h.writes {
		return api.HeaderState{}, errBroken
	}
	return h.Host.SetHeaders(ctx, id, list, match)
}

func (h failing) AddLeases(ctx context.Context, id policy.BoxID, req api.LeaseRequest, match *uint64) (api.PolicyState, error) {
	if h.writes {
		return api.PolicyState{}, errBroken
	}
	return h.Host.AddLeases(ctx, id, req, match)
}

func (h failing) SetEnforcement(ctx context.Context, id policy.BoxID, audit time.Duration, match *uint64) (api.PolicyState, error) {
	if h.writes {
		return api.PolicyState{}, errBroken
	}
	return h.Host.SetEnforcement(ctx, id, audit, match)
}

func (h failing) EndLeases(ctx context.Context, id policy.BoxID, which func(api.LeaseEntry) bool, match *uint64) (api.PolicyState, error) {
	if h.writes {
		return api.PolicyState{}, errBroken
	}
	return h.Host.EndLeases(ctx, id, which, match)
}

// TestHalfOfAHostFails: a change whose reading or writing fails is an error, and is neither logged nor in the trail.
func TestHalfOfAHostFails(t *testing.T) {
	t.Parallel()
	for _, broken := range []failing{{reads: true}, {writes: true}} {
		broken.Host = apitest.NewHost(t)
		past := history.New(nil)
		f := apitest.Serve(t, broken.Host, (&rules.Endpoints{Boxes: broken, Host: broken, History: past, Bodies: apitest.Bodies}).Routes())
		if _, err := broken.CreateBox(t.Context(), api.CreateRequest{}); err != nil {
			t.Fatal(err)
		}
		const at = "/v2/box/box1/config/"
		f.Expect(t, 500, "PATCH", at+"attach-headers", `{"a.test":{"X":"v"}}`)
		if broken.reads {
			f.Expect(t, 500, "GET", at+"network-policy", "")
			f.Expect(t, 500, "GET", at+"network-policy/leases", "")
			f.Expect(t, 500, "GET", at+"attach-headers", "")
		} else {
			f.Expect(t, 500, "PUT", at+"network-policy", `{"mode":"deny-all"}`)
			f.Expect(t, 500, "POST", at+"network-policy/leases", `{"action":"deny","entries":["a.example"],"expires_in":1}`)
			f.Expect(t, 500, "DELETE", at+"network-policy/leases", "")
			f.Expect(t, 500, "PUT", at+"attach-headers", `{"a.test":{"X":"v"}}`)
		}
		if logs := past.Logs("box1", 0, 100); len(logs) > 0 || len(f.Changes()) > 0 || broken.ByID["box1"].Policy.Version != 1 {
			t.Errorf("%+v: %v", broken, logs)
		}
	}
}

// TestRequestsThatCannotBeRead: a precondition or a body that cannot be read is refused by every endpoint that takes one, and of a
// box that is not there nothing is said.
func TestRequestsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	f.Expect(t, 200, "PUT", namedWeb, `{"mode":"deny-all"}`)
	for _, rt := range (&rules.Endpoints{}).Routes() {
		path := strings.NewReplacer("{id}", id, "{name}", "web").Replace(rt.Path)
		if rt.Method != "GET" {
			if got := f.Call(t, rt.Method, path, rt.Example, apitest.IfMatch("x")); got.StatusCode != 412 {
				t.Errorf("%s with a tag that is none: %s %s", rt.ID, got.Status, got.Text)
			}
		}
		if rt.Request != nil {
			long := func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }
			if got := f.Call(t, rt.Method, path, rt.Example, long); got.StatusCode != 415 {
				t.Errorf("%s with plain text: %s %s", rt.ID, got.Status, got.Text)
			}
		}
		if strings.Contains(rt.Path, "{id}") {
			f.Expect(t, 404, rt.Method, strings.Replace(rt.Path, "{id}", "nobody", 1), rt.Example, "no box has the ID or name")
		}
	}
	if f.state(t, id).Version != 1 || f.host.Named["web"].Version != 1 {
		t.Error("a refused request had an effect")
	}
}
