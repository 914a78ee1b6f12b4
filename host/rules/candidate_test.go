package rules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/match"
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
		{denyAll, "b.example", 0, errInvalid, "is missing"},
		{allowAll, "b.example", 443, api.ErrConflict, "allows b.example:443 already"},
		{custom, "a.example", 443, api.ErrConflict, "already"},
		{custom, "b.example", 443, nil, "port 443"},
		{custom, "x.evil.example", 443, api.ErrForbidden, "denied_domain"},
	} {
		set(c.spec)
		_, got, err := g.Candidate(t.Context(), "b1", c.host, c.port)
		switch {
		case c.kind == nil && (err != nil || !strings.Contains(got.Opens, c.has) || got.Digest == ""):
			t.Errorf("%s %d: %+v %v", c.host, c.port, got, err)
		case c.kind != nil && (err == nil || !strings.Contains(err.Error(), c.has) || c.kind != errInvalid && !errors.Is(err, c.kind)):
			t.Errorf("%s %d: %v", c.host, c.port, err)
		}
	}

	set(denyAll)
	_, first, err := g.Candidate(t.Context(), "b1", "b.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	// Each of these changes the effect of an approval, or concerns another destination or box.
	g.addBox("b2")
	digests := []string{first.Digest}
	add := func(id policy.BoxID, host string, port uint16) {
		t.Helper()
		_, c, err := g.Candidate(t.Context(), id, host, port)
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
	if _, c, err := g.Candidate(t.Context(), "b1", ruleHost, 443); err != nil || len(c.Headers) != 1 {
		t.Error("a header rule adds credentials, and the candidate does not show it:", c, err)
	}

	before := g.state("b1")
	for _, digest := range []string{"", "0", digests[1], digests[4]} {
		if _, err := g.Grant(t.Context(), "b1", api.Grant{Host: "b.example", Port: 443, Digest: digest, Lasts: time.Hour}); !errors.Is(err, api.ErrConflict) {
			t.Errorf("granted by the digest %q: %v", digest, err)
		}
	}
	if after := g.state("b1"); after != before {
		t.Error("a refused grant has changed the box")
	}
	if s, err := g.Grant(t.Context(), "b1", api.Grant{Host: "b.example", Port: 443, Digest: first.Digest, Lasts: time.Hour}); err != nil || len(s.Leases) != 1 || s.Leases[0].Entry != "b.example:443" || s.Spec.Mode != policy.ModeDenyAll {
		t.Error(s, err)
	}
	_, c, err := g.Candidate(t.Context(), "b1", "d.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := g.Grant(t.Context(), "b1", api.Grant{Host: "d.example", Port: 443, Digest: c.Digest}); err != nil || !slices.Equal(s.Spec.AllowedDomains, []string{"d.example:443"}) {
		t.Error(s, err)
	}
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
		_, c, err := g.Candidate(ctx, "b1", host, 443)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Grant(ctx, "b1", api.Grant{Host: host, Port: 443, Digest: c.Digest, Lasts: lasts}); err != nil {
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
