package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/policy"
)

// TestLeases: temporary entries are made, read with the time that is left, and ended by action, by destination, or all at once.
func TestLeases(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	at := "/v2/box/" + id + "/config/network-policy/leases"
	f.Expect(t, 200, "GET", at, "", `"leases":[]`, `"version":1`)
	made := f.Expect(t, 201, "POST", at, `{"action":"allow","entries":["a.example:443","b.example"],"expires_in":3600}`,
		`{"action":"allow","entry":"a.example:443","started_at":1700000000,"expires_at":1700003600,"expires_in":3600}`)
	if made.Header.Get("ETag") != `"2"` {
		t.Errorf("ETag %s", made.Header.Get("ETag"))
	}
	f.Expect(t, 201, "POST", at, `{"action":"deny","entries":["a.example:443"],"expires_in":2592000}`)
	f.Expect(t, 200, "GET", "/v2/box/"+id+"/config/network-policy", "", `"leases":[{"action":"allow"`)
	left := func() (names []string) {
		for _, l := range f.state(t, id).Leases {
			names = append(names, fmt.Sprint(l.Allow, " ", l.Entry))
		}
		return names
	}
	for _, step := range []struct {
		query string
		left  []string
	}{
		{"?action=allow&entry=a.example:443", []string{"true b.example", "false a.example:443"}},
		{"?action=deny", []string{"true b.example"}},
		{"", nil},
	} {
		f.Expect(t, 200, "DELETE", at+step.query, "")
		if got := left(); !slices.Equal(got, step.left) {
			t.Errorf("after the end of %q there are %q, want %q", step.query, got, step.left)
		}
	}
	f.Expect(t, 404, "DELETE", at, "")
	f.Expect(t, 422, "DELETE", at+"?action=both", "", "must be allow or deny")
	f.Expect(t, 422, "DELETE", at+"?entries=a.example", "", "unknown")
	logs := fmt.Sprint(f.history.Logs("box1", 0, 100))
	for _, want := range []string{"2 temporary entries (allow) of the network policy for 1h0m0s, version 2", "temporary entries of the network policy ended, version 4"} {
		if !strings.Contains(logs, want) {
			t.Errorf("the log of the box is %s, without %q", logs, want)
		}
	}
}

// TestLeasesRefused: what is asked for must have an action, destinations and an end, all within bounds.
func TestLeasesRefused(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{})
	many := `"` + strings.Repeat(`a.example","`, 256) + `a.example"`
	for body, pointer := range map[string]string{
		`{"entries":["a.example"],"expires_in":1}`:                              "/action",
		`{"action":"Allow","entries":["a.example"],"expires_in":1}`:             "/action",
		`{"action":"allow","expires_in":1}`:                                     "/entries",
		`{"action":"allow","entries":[],"expires_in":1}`:                        "/entries",
		`{"action":"allow","entries":[` + many + `],"expires_in":1}`:            "/entries",
		`{"action":"allow","entries":["a.example"]}`:                            "/expires_in",
		`{"action":"allow","entries":["a.example"],"expires_in":0}`:             "/expires_in",
		`{"action":"allow","entries":["a.example"],"expires_in":2592001}`:       "/expires_in",
		`{"action":"allow","entries":["a.example"],"expires_in":1.5}`:           "/expires_in",
		`{"action":"allow","entries":["a.example"],"expires_in":1,"forever":1}`: "/forever",
	} {
		got := f.Call(t, "POST", "/v2/box/"+id+"/config/network-policy/leases", body)
		if at, _ := got.JSON(t)["pointer"].(string); got.StatusCode != 422 || at != pointer {
			t.Errorf("%.100s: %s %s, want %s", body, got.Status, got.Text, pointer)
		}
	}
	if f.state(t, id).Version != 1 {
		t.Error("a refused request had an effect")
	}
}

// TestLeasesOfAReplacedPolicy: who replaces a policy says which temporary entries go on, in the form in which they were read.
func TestLeasesOfAReplacedPolicy(t *testing.T) {
	t.Parallel()
	f := serve(t)
	id := f.create(t, api.CreateRequest{Policy: policy.Spec{Mode: policy.ModeAllowAll}})
	at := "/v2/box/" + id + "/config/network-policy"
	f.Expect(t, 201, "POST", at+"/leases", `{"action":"allow","entries":["a.example","b.example"],"expires_in":60}`)
	f.Expect(t, 201, "POST", at+"/leases", `{"action":"deny","entries":["c.example"],"expires_in":60}`)
	f.Expect(t, 200, "PUT", at, f.Call(t, "GET", at, "").Text)
	if n := len(f.state(t, id).Leases); n != 3 {
		t.Errorf("%d of three entries go on after what was read was sent back", n)
	}
	for body, pointer := range map[string]string{
		`{"mode":"deny-all","leases":{}}`:                                             "/leases",
		`{"mode":"deny-all","leases":[{"action":"allow","entry":"a.example","x":1}]}`: "/leases",
		`{"mode":"deny-all","leases":[{"action":"deny","entry":"c.example"},{}]}`:     "/leases/1/action",
	} {
		if got := f.Call(t, "PUT", at, body); got.StatusCode != 422 || got.JSON(t)["pointer"] != pointer {
			t.Errorf("%s: %s %s, want %s", body, got.Status, got.Text, pointer)
		}
	}
	f.Expect(t, 200, "PUT", at, `{"mode":"deny-all","leases":[{"action":"allow","entry":"b.example"}]}`)
	if now := f.state(t, id).Leases; len(now) != 1 || now[0].Entry != "b.example" || !now[0].Allow {
		t.Errorf("%+v go on", now)
	}
	f.Expect(t, 200, "PUT", at, `{"mode":"deny-all"}`)
	if now := f.state(t, id).Leases; len(now) != 0 {
		t.Errorf("%+v allow under a policy that does not say so", now)
	}
}
