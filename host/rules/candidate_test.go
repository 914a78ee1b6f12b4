package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/store/history"
)

// TestCandidate: which destinations an approval can open, the effect of an approval, and that it is applied only as it was shown.
func TestCandidate(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	set := func(s policy.Spec) {
		t.Helper()
		if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: s}, nil); err != nil {
			t.Fatal(err)
		}
	}
	custom := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}, DeniedDomains: []string{"*.evil.example"}}
	for _, c := range []struct {
		spec policy.Spec
		host string
		port uint16
		kind error  // nil: a candidate
		has  string // in the candidate's description, or in the error
	}{
		{denyAll, "b.example", 443, nil, "TCP connections to port 443 of b.example"},
		{denyAll, "B.example.", 443, nil, "port 443 of b.example"},
		{denyAll, "8.8.8.8", 0, nil, "every port and protocol of the address 8.8.8.8"},
		{denyAll, "8.8.8.8", 443, errInvalid, "an entry for an address opens all its ports"},
		{denyAll, "10.1.2.3", 0, api.ErrForbidden, "protected_range"},
		{denyAll, "::ffff:10.1.2.3", 0, api.ErrForbidden, "protected_range"},
		{denyAll, "169.254.169.254", 0, api.ErrForbidden, "protected_range"},
		{denyAll, "*.example", 443, errInvalid, ""},
		{denyAll, "127.1", 443, errInvalid, ""},
		{denyAll, "2130706433", 443, errInvalid, ""},
		{denyAll, "0x7f.1", 443, errInvalid, ""},
		{denyAll, "8.8.8.0/24", 0, errInvalid, ""},
		{denyAll, "[2606:4700::1]", 0, errInvalid, ""},
		{denyAll, "fe80::1%eth0", 0, errInvalid, ""},
		{denyAll, "64:ff9b::a01:203", 0, api.ErrForbidden, "protected_range"},
		{denyAll, "b.example:443", 443, errInvalid, ""},
		{denyAll, "b.example\x00", 443, errInvalid, ""},
		{denyAll, "policy.boxgate.internal", 80, errInvalid, "the gateway itself"},
		{denyAll, "POLICY.boxgate.internal.", 443, errInvalid, "the gateway itself"},
		{denyAll, "bücher.example", 443, nil, "port 443 of xn--bcher-kva.example"},
		{denyAll, "", 443, errInvalid, ""},
		{denyAll, "b.example", 0, errInvalid, "is missing"},
		{allowAll, "b.example", 443, api.ErrConflict, "allows b.example:443 already"},
		{custom, "a.example", 443, api.ErrConflict, "already"},
		{custom, "b.example", 443, nil, "port 443"},
		{custom, "x.evil.example", 443, api.ErrForbidden, "denied_domain"},
	} {
		set(c.spec)
		got, err := g.Candidate(t.Context(), "b1", api.Destination{Host: c.host, Port: c.port})
		switch {
		case c.kind == nil && (err != nil || !strings.Contains(got.Opens, c.has) || got.Digest == ""):
			t.Errorf("%s %d: %+v %v", c.host, c.port, got, err)
		case c.kind != nil && (err == nil || !strings.Contains(err.Error(), c.has) || c.kind != errInvalid && !errors.Is(err, c.kind)):
			t.Errorf("%s %d: %v", c.host, c.port, err)
		}
	}

	set(denyAll)
	first, err := g.Candidate(t.Context(), "b1", api.Destination{Host: "b.example", Port: 443})
	if err != nil {
		t.Fatal(err)
	}
	// Each of these changes the effect of an approval, or concerns another destination or box.
	g.addBox("b2")
	digests := []string{first.Digest}
	add := func(id policy.BoxID, host string, port uint16) {
		t.Helper()
		c, err := g.Candidate(t.Context(), id, api.Destination{Host: host, Port: port})
		if err != nil || slices.Contains(digests, c.Digest) {
			t.Errorf("%s %s %d: the digest is not new: %v", id, host, port, err)
		}
		digests = append(digests, c.Digest)
	}
	add("b2", "b.example", 443)
	add("b1", "b.example", 8443)
	add("b1", "c.example", 443)
	set(custom)
	add("b1", "b.example", 443)
	ruled := custom
	ruled.Rules = []match.RequestRule{{Hosts: []string{"b.example"}, Methods: []string{"GET"}, Action: "allow"}}
	set(ruled)
	add("b1", "b.example", 443)
	set(denyAll)
	if _, err := g.SetHeaders(t.Context(), "b1", rule(t, "x"), nil); err != nil {
		t.Fatal(err)
	}
	ruleHost := rule(t, "x")[0].Pattern.Name().String()
	if c, err := g.Candidate(t.Context(), "b1", api.Destination{Host: ruleHost, Port: 443}); err != nil || len(c.Headers) != 1 {
		t.Error("a header rule adds credentials, and the candidate does not show it:", c, err)
	}

	before := g.state("b1")
	for _, digest := range []string{"", "0", digests[1], digests[4]} {
		if _, err := g.Grant(t.Context(), "b1", api.Grant{Destination: api.Destination{Host: "b.example", Port: 443}, Digest: digest, Lasts: time.Hour}); !errors.Is(err, api.ErrConflict) {
			t.Errorf("granted by the digest %q: %v", digest, err)
		}
	}
	if after := g.state("b1"); after != before {
		t.Error("a refused grant has changed the box")
	}
	if s, err := g.Grant(t.Context(), "b1", api.Grant{Destination: api.Destination{Host: "b.example", Port: 443}, Digest: first.Digest, Lasts: time.Hour}); err != nil || len(s.Leases) != 1 || s.Leases[0].Entry != "b.example:443" || s.Spec.Mode != policy.ModeDenyAll {
		t.Error(s, err)
	}
	c, err := g.Candidate(t.Context(), "b1", api.Destination{Host: "d.example", Port: 443})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := g.Grant(t.Context(), "b1", api.Grant{Destination: api.Destination{Host: "d.example", Port: 443}, Digest: c.Digest}); err != nil || !slices.Equal(s.Spec.AllowedDomains, []string{"d.example:443"}) {
		t.Error(s, err)
	}
}

// TestCandidateForRequests: which requests an approval can open, and that it opens them for a time, before the rule that was shown and as long
// as the policy has that rule, or for good.
func TestCandidateForRequests(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	set := func(s policy.Spec) {
		t.Helper()
		if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: s, Keep: keepAll(g, "b1")}, nil); err != nil {
			t.Fatal(err)
		}
	}
	read, none := match.RequestRule{Hosts: []string{"a.example"}, Methods: []string{"GET"}, Action: "allow"}, match.RequestRule{Hosts: []string{"a.example"}, Action: "deny"}
	message := match.RequestRule{Hosts: []string{"a.example"}, Paths: []string{"/mcp"}, Action: "deny", Match: &match.Match{MCP: &match.MCP{Tools: []string{"delete"}}}}
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"a.example"}, Rules: []match.RequestRule{message, read, none}}
	set(spec)
	to := func(method, path string) api.Destination {
		return api.Destination{Host: "a.example", Port: 443, Method: method, Path: path}
	}
	for _, c := range []struct {
		to   api.Destination
		kind error
		has  string
	}{
		{to("DELETE", "/x"), nil, "DELETE requests for the path /x of a.example, port 443"},
		{to("DELETE", "/x/*"), nil, "every path that begins with /x/"},
		{to("GET", "/x"), api.ErrConflict, "already"},
		{to("POST", "/mcp"), api.ErrForbidden, "unreadable_content"},
		{to("POST", "/m*"), nil, "every path that begins with /m"}, // the rule on messages comes first, and continues to apply
		{api.Destination{Host: "b.example", Port: 443, Method: "GET", Path: "/"}, api.ErrConflict, "as a whole"},
		{to("DELETE", ""), errInvalid, "go together"},
		{to("", "/x"), errInvalid, "go together"},
		{to("DELETE", "x"), errInvalid, "not a path"},
		{api.Destination{Host: "8.8.8.8", Method: "GET", Path: "/"}, errInvalid, "with a name only"},
	} {
		got, err := g.Candidate(t.Context(), "b1", c.to)
		switch {
		case c.kind == nil && (err != nil || !strings.Contains(got.Opens, c.has) || got.Before != "deny a.example" || got.Digest == ""):
			t.Errorf("%v: %+v %v", c.to, got, err)
		case c.kind != nil && (err == nil || !strings.Contains(err.Error(), c.has) || c.kind != errInvalid && !errors.Is(err, c.kind)):
			t.Errorf("%v: %v", c.to, err)
		}
	}
	allows := func(method, path string) bool {
		n, _ := name.Parse("a.example")
		b, err := g.boxes.Find("b1")
		if err != nil {
			t.Fatal(err)
		}
		return b.Policy.Load().Decide(policy.Request{Stage: policy.StageHTTP, Name: n, Port: 443, Protocol: policy.TCP, Method: method, Path: path}).Allowed()
	}
	digest := func(d api.Destination) string {
		t.Helper()
		c, err := g.Candidate(t.Context(), "b1", d)
		if err != nil {
			t.Fatal(err)
		}
		return c.Digest
	}
	x := digest(to("DELETE", "/x/*"))
	if y := digest(to("DELETE", "/x")); x == y || y == digest(to("PUT", "/x")) {
		t.Error("one digest for several destinations")
	}
	if _, err := g.Grant(t.Context(), "b1", api.Grant{Destination: to("DELETE", "/*"), Digest: x, Lasts: time.Hour}); !errors.Is(err, api.ErrConflict) {
		t.Error("granted by the digest of other requests:", err)
	}
	s, err := g.Grant(t.Context(), "b1", api.Grant{Destination: to("DELETE", "/x/*"), Digest: x, Lasts: time.Hour})
	if err != nil || len(s.Leases) != 1 || s.Leases[0].Entry != "DELETE a.example:443/x/*" || len(s.Spec.Rules) != 3 {
		t.Fatal(s, err)
	}
	if !allows("DELETE", "/x/1") || allows("DELETE", "/y") || allows("POST", "/x/1") || !allows("GET", "/y") {
		t.Error("other requests than the approved ones are open")
	}
	// A rule that the operator adds before it wins, and with another rule in place of the one that was shown it has no effect.
	closed := spec
	closed.Rules = []match.RequestRule{{Hosts: []string{"a.example"}, Paths: []string{"/x/secret"}, Action: "deny"}, read, none}
	set(closed)
	if allows("DELETE", "/x/secret") || !allows("DELETE", "/x/1") {
		t.Error("the rule that was added does not win, or has ended the rest")
	}
	changed := spec
	changed.Rules = []match.RequestRule{read, {Hosts: []string{"*.example"}, Action: "deny"}}
	set(changed)
	if allows("DELETE", "/x/1") {
		t.Error("it precedes a rule that no one was shown")
	}
	set(spec)
	if !allows("DELETE", "/x/1") {
		t.Error("it has ended with a change of the policy that was taken back")
	}
	full := spec
	for len(full.Rules) < match.MaxRules {
		full.Rules = append(slices.Clone(full.Rules[:1]), append([]match.RequestRule{{Hosts: []string{fmt.Sprintf("h%d.example", len(full.Rules))}, Action: "deny"}}, full.Rules[1:]...)...)
	}
	set(full)
	if allows("DELETE", "/x/1") {
		t.Error("there is one more rule than a policy takes")
	}
	set(spec)
	if s, err := g.Grant(t.Context(), "b1", api.Grant{Destination: to("PUT", "/f"), Digest: digest(to("PUT", "/f"))}); err != nil || len(s.Spec.Rules) != 4 || s.Spec.Rules[2].Methods[0] != "PUT" {
		t.Error(s.Spec.Rules, err)
	}
	if !allows("PUT", "/f") || allows("PUT", "/f/g") || allows("POST", "/f") {
		t.Error("other requests than the approved ones are open for good")
	}
}

// TestCandidatesAreComputedOnce: the effect of an approval is computed once for each policy, without waiting for changes of the box
// afterwards, and anew once the policy is another, also for a grant.
func TestCandidatesAreComputedOnce(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	set := func(s policy.Spec) {
		t.Helper()
		if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: s}, nil); err != nil {
			t.Fatal(err)
		}
	}
	set(denyAll)
	to := api.Destination{Host: "b.example", Port: 443}
	first, err := g.Candidate(t.Context(), "b1", to)
	if err != nil {
		t.Fatal(err)
	}
	b, err := g.boxes.Lock("b1")
	if err != nil {
		t.Fatal(err)
	}
	again, err := g.Candidate(t.Context(), "b1", to)
	b.Unlock()
	if err != nil || again.Digest != first.Digest {
		t.Error(again, err)
	}
	for i := range 3 * mostShown {
		if _, err := g.Candidate(t.Context(), "b1", api.Destination{Host: fmt.Sprintf("h%d.example", i), Port: 443}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(g.shown.boxes["b1"].effects); n > mostShown {
		t.Errorf("%d effects are kept", n)
	}
	set(allowAll)
	if _, err := g.Candidate(t.Context(), "b1", to); !errors.Is(err, api.ErrConflict) {
		t.Error("an effect under an earlier policy:", err)
	}
	g.addBox("b2")
	g.boxes.Remove("b1")
	if _, err := g.Candidate(t.Context(), "b2", to); g.shown.boxes["b1"] != nil {
		t.Error("the effects of a deleted box are kept:", err)
	}
}

// keepAll returns the temporary entries of a box.
func keepAll(g *gateway, id policy.BoxID) *[]api.LeaseEntry {
	keep := []api.LeaseEntry{}
	if s, err := g.Policy(context.Background(), id); err == nil {
		for _, l := range s.Leases {
			keep = append(keep, l.LeaseEntry)
		}
	}
	return &keep
}

// TestTheHistoryNamesWhoApproved: the version of an approval has the key that answered as its origin, and names the kind of the answer.
func TestTheHistoryNamesWhoApproved(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("b1")
	if _, err := g.SetPolicy(t.Context(), "b1", api.PolicyChange{Spec: denyAll}, nil); err != nil {
		t.Fatal(err)
	}
	ctx := api.WithCaller(t.Context(), api.Caller{Key: "k9", Name: "rita", Role: api.RoleApprover})
	for _, lasts := range []time.Duration{time.Hour, 0} {
		host := fmt.Sprintf("h%d.example", int(lasts.Hours()))
		c, err := g.Candidate(ctx, "b1", api.Destination{Host: host, Port: 443})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Grant(ctx, "b1", api.Grant{Destination: api.Destination{Host: host, Port: 443}, Digest: c.Digest, Lasts: lasts}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := NewVersions(g.db.History).PolicyVersions(t.Context(), "b1", api.VersionQuery{Most: 2})
	if err != nil || len(list.Versions) != 2 {
		t.Fatal(list, err)
	}
	for i, cause := range []history.Cause{history.Approved, history.LeaseBegun} {
		if v := list.Versions[i]; v.Cause != string(cause) || v.KeyID != "k9" || v.Key != "rita" || v.Role != string(api.RoleApprover) || v.Result != string(history.InForce) {
			t.Errorf("%+v", v)
		}
	}
}

// errInvalid marks a case that is refused as malformed.
var errInvalid = errors.New("invalid")
