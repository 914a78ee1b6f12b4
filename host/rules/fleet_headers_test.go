package rules

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/fleet/shared"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule/header"
	"boxgate/store"
)

// rulesOfFleet is a fleet whose objects are documents in clear.
type rulesOfFleet struct {
	g        *gateway
	founding string
	fenced   atomic.Bool
	version  uint64
	fail     error // of a change
	noKey    bool
}

func (f *rulesOfFleet) Founding() string { return f.founding }
func (f *rulesOfFleet) Fenced() bool     { return f.fenced.Load() }

func (f *rulesOfFleet) OpenHeaders(objects map[string][]byte) (shared.HeaderRules, error) {
	if f.noKey {
		return shared.HeaderRules{}, errFake
	}
	document, ok := objects["rules"]
	if !ok {
		return shared.HeaderRules{}, nil
	}
	return shared.HeaderRules{Version: f.version, Document: document}, nil
}

func (f *rulesOfFleet) ChangeHeaders(_ context.Context, least uint64, check func(uint64) error, document []byte) (uint64, error) {
	if err := check(f.version); err != nil {
		return 0, err
	}
	if f.fail != nil {
		return 0, f.fail
	}
	f.version = max(f.version, least) + 1
	return f.version, f.g.ApplyFleetHeaders(map[string][]byte{"rules": document})
}

// inFleet makes a gateway a member of a fleet, as New does, and reads its copy.
func (g *gateway) inFleet(founding string) *rulesOfFleet {
	g.t.Helper()
	f := &rulesOfFleet{g: g, founding: founding}
	g.fleetRules, g.shared.fence, g.fleetPatience = f, g.fleetFence, time.Minute
	if err := g.loadFleetHeaders(); err != nil {
		g.t.Fatal(err)
	}
	return f
}

func fleetRules(t *testing.T, document string) []policy.HeaderRule {
	t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(document), nil)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func named(t *testing.T, host string) name.Name {
	t.Helper()
	n, err := name.Parse(host)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sends returns the value that the policy of a box sets for a host, or the reason for which it refuses.
func (g *gateway) sends(id policy.BoxID, host string) string {
	g.t.Helper()
	b, err := g.boxes.Find(id)
	if err != nil {
		g.t.Fatal(err)
	}
	rule, d := b.Policy.Load().HeaderRule(policy.Request{Stage: policy.StageHTTP, Name: named(g.t, host), Port: 443, Protocol: policy.TCP, Method: "GET", Path: "/"})
	if d.Reason != "" {
		return string(d.Reason)
	}
	if set := header.Of(rule.Effects); len(set) > 0 {
		return set[0].Literal.Reveal()
	}
	return ""
}

// TestPrecedenceOfFleetHeaders: rules of a box precede the global ones of its host for the same pattern, and these the ones of the fleet. The fence
// concerns the hosts of the fleet's rules that apply.
func TestPrecedenceOfFleetHeaders(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	f := g.inFleet("f1")
	g.addBox("b1")
	must := func(_ api.HeaderState, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(g.SetFleetHeaders(t.Context(), fleetRules(t, `{"one.example":{"X-Key":"fleet"},"two.example:443":{"X-Key":"fleet"},"*.wide.example":{"X-Key":"fleet"},"three.example":{"X-Key":"fleet"}}`), nil))
	must(g.SetGlobalHeaders(t.Context(), fleetRules(t, `{"two.example":{"X-Key":"host"},"three.example":{"X-Key":"host"},"a.wide.example":{"X-Key":"host"}}`), nil))
	must(g.SetHeaders(t.Context(), "b1", fleetRules(t, `{"three.example":{"X-Key":"box"}}`), nil))
	want := map[string]string{"one.example": "fleet", "two.example": "host", "three.example": "box", "a.wide.example": "host", "b.wide.example": "fleet", "four.example": ""}
	for host, value := range want {
		if got := g.sends("b1", host); got != value {
			t.Errorf("%s: %q, not %q", host, got, value)
		}
	}
	f.fenced.Store(true)
	for host, value := range want {
		if value == "fleet" {
			value = string(name.ReasonFleetFenced)
		}
		if got := g.sends("b1", host); got != value {
			t.Errorf("past the fence, %s: %q, not %q", host, got, value)
		}
	}
	f.fenced.Store(false)
	state, err := g.FleetHeaders(t.Context())
	if err != nil || !state.Fleet || len(state.Rules) != 4 || len(state.Warnings) != 2 {
		t.Errorf("%+v, %v", state, err)
	}
	patterns, err := g.HeaderPatterns("b1")
	if err != nil || len(patterns) != 5 {
		t.Errorf("%v, %v", patterns, err)
	}
}

// TestEveryUseOfGlobalHeadersHasTheFleets: whatever of the host looks at global header rules looks at the fleet's.
func TestEveryUseOfGlobalHeadersHasTheFleets(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.inFleet("f1")
	g.addBox("b1")
	if _, err := g.SetFleetHeaders(t.Context(), fleetRules(t, `{"one.example:8443":{"headers":{"X-Key":"fleet"},"placeholders":{"API_KEY":"fleet"},"scrub":true}}`), nil); err != nil {
		t.Fatal(err)
	}
	if rules := g.shared.Rules(nil); len(rules) != 1 || policy.CountPlaceholders(rules) != 1 { // variables of the environment, and of new boxes
		t.Errorf("%+v", rules)
	}
	b, err := g.boxes.Find("b1")
	if err != nil {
		t.Fatal(err)
	}
	c, at := b.Policy.Load(), named(t, "one.example")
	switch {
	case !c.Intercepts(at, 8443): // ports, the CA, doctor
		t.Error("not intercepted")
	case !c.HasPlaceholders() || c.Tokens()["API_KEY"] == "":
		t.Error("no token for commands")
	case len(c.HeaderPatterns()) != 1: // the map of authority
		t.Error("no pattern")
	case c.ScrubRule(at).Shared == nil: // other ports, captures
		t.Error("responses are not scrubbed")
	case g.shared.CheckNew(policy.Spec{Mode: policy.ModeAllowAll}, nil) != nil:
		t.Error("no new box")
	}
	b.Lock()
	replayed, err := g.shared.CompileSpec(b, policy.Spec{Mode: policy.ModeAllowAll}, 9)
	b.Unlock()
	if err != nil || !replayed.Intercepts(at, 8443) {
		t.Errorf("a candidate policy lacks them: %v", err)
	}
	alone := g.shared.inputsOf(b)
	if b.Alone = true; len(g.shared.inputsOf(b).rules()) != 0 || len(alone.rules()) != 1 {
		t.Error("a box without global rules has the fleet's")
	}
	b.Alone = false
}

// TestCopyOfFleetHeaders: a start without etcd has the rules of the last run in force, and refuses requests until the fleet was followed. The copy is
// sealed, and it is gone after the host has left or joined another fleet.
func TestCopyOfFleetHeaders(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.inFleet("f1")
	g.addBox("b1")
	rules := fleetRules(t, `{"one.example":{"X-Key":"canary-value"}}`)
	if _, err := g.SetFleetHeaders(t.Context(), rules, nil); err != nil || g.sends("b1", "one.example") != "canary-value" {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if _, err := g.db.Backup(&backup); err != nil || bytes.Contains(backup.Bytes(), []byte("canary-value")) || bytes.Contains(backup.Bytes(), []byte("one.example")) {
		t.Errorf("the copy is in a backup in clear: %v", err)
	}
	g = g.restart()
	f := g.inFleet("f1")
	g.boxesAgain()
	if got := g.sends("b1", "one.example"); got != string(name.ReasonFleetFenced) {
		t.Errorf("before the fleet was followed: %q", got)
	}
	f.noKey = true
	if err := g.ApplyFleetHeaders(nil); !errors.Is(err, errFake) || g.sends("b1", "one.example") != string(name.ReasonFleetFenced) {
		t.Errorf("without the key: %v, %q", err, g.sends("b1", "one.example"))
	}
	f.noKey, f.version = false, 2
	if err := g.ApplyFleetHeaders(map[string][]byte{"rules": []byte(`{"one.example":{"X-Key":"next"}}`)}); err != nil || g.sends("b1", "one.example") != "next" {
		t.Errorf("after it was followed: %v, %q", err, g.sends("b1", "one.example"))
	}
	f.version = 1
	if err := g.ApplyFleetHeaders(map[string][]byte{"rules": []byte(`{"one.example":{"X-Key":"earlier"}}`)}); err != nil || g.sends("b1", "one.example") != string(name.ReasonFleetFenced) {
		t.Errorf("an earlier version: %v, %q", err, g.sends("b1", "one.example"))
	}
	if state, err := g.FleetHeaders(t.Context()); err != nil || len(state.Warnings) != 1 || state.Version != 2 {
		t.Errorf("%+v, %v", state, err)
	}
	if err := g.ApplyFleetHeaders(nil); err != nil || g.sends("b1", "one.example") != string(name.ReasonFleetFenced) {
		t.Errorf("rules that are gone: %v, %q", err, g.sends("b1", "one.example"))
	}
	if state, err := g.SetFleetHeaders(t.Context(), fleetRules(t, `{"one.example":{"X-Key":"again"}}`), nil); err != nil || state.Version != 3 || g.sends("b1", "one.example") != "again" {
		t.Errorf("set again: %+v, %v", state, err)
	}
	for _, founding := range []string{"", "f2"} {
		if err := g.store.SetFleetHeaders("f1", store.Headers{Rules: rules, Version: 4}); err != nil {
			t.Fatal(err)
		}
		g = g.restart()
		if g.fleetRules = nil; founding != "" {
			g.inFleet(founding)
		} else if err := g.loadFleetHeaders(); err != nil {
			t.Fatal(err)
		}
		g.boxesAgain()
		left, kept, err := g.store.FleetHeaders()
		if err != nil || left != "" || len(kept.Rules) != 0 || g.sends("b1", "one.example") != "" {
			t.Errorf("in the fleet %q: %q %+v, %v", founding, left, kept, err)
		}
	}
}

// restart opens another gateway over the state of the first.
func (g *gateway) restart() *gateway {
	g.t.Helper()
	if err := g.db.Close(); err != nil {
		g.t.Fatal(err)
	}
	return openGateway(g.t, g.dir)
}

// boxesAgain compiles the policies of all boxes.
func (g *gateway) boxesAgain() {
	g.t.Helper()
	if err := g.spread(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
}

// TestErrorsOfFleetHeaders: a host without a fleet, another version, the bounds and etcd.
func TestErrorsOfFleetHeaders(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	if _, err := g.FleetHeaders(t.Context()); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	if _, err := g.SetFleetHeaders(t.Context(), nil, nil); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	f := g.inFleet("f1")
	rules := fleetRules(t, `{"one.example":{"X-Key":"v"}}`)
	stale := uint64(7)
	if _, err := g.SetFleetHeaders(t.Context(), rules, &stale); !errors.Is(err, api.ErrPrecondition) {
		t.Error(err)
	}
	for _, because := range []error{shared.ErrBehind, shared.ErrFenced, shared.ErrContended, shared.ErrUnsupported, errFake} {
		f.fail = because
		if _, err := g.SetFleetHeaders(t.Context(), rules, nil); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), because.Error()) {
			t.Errorf("%v: %v", because, err)
		}
	}
	f.fail = nil
	large := map[string]string{}
	for i := range 60 {
		large["X-Key-"+strings.Repeat("a", i+1)] = strings.Repeat("v", 8000)
	}
	many, err := policy.ParseHeaders(map[string]map[string]string{"one.example": large})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.SetFleetHeaders(t.Context(), many, nil); err == nil || !strings.Contains(err.Error(), "380 KiB") {
		t.Errorf("too large: %v", err)
	}
}

// TestBoxThatCannotTakeFleetHeaders: a box whose kernel rules cannot be applied is closed, and the others have the rules: the fleet does not wait.
func TestBoxThatCannotTakeFleetHeaders(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.inFleet("f1")
	g.addBox("b1")
	if _, err := g.SetFleetHeaders(t.Context(), fleetRules(t, `{"one.example":{"X-Key":"1"}}`), nil); err != nil {
		t.Fatal(err)
	}
	g.kernel.Before = func(policy.BoxID, policy.KernelPlan) error { return errFake }
	_, err := g.SetFleetHeaders(t.Context(), fleetRules(t, `{"one.example":{"X-Key":"2"}}`), nil)
	b, errFind := g.boxes.Find("b1")
	if errFind != nil {
		t.Fatal(errFind)
	}
	if b.Connected() && g.sends("b1", "one.example") == "1" {
		t.Errorf("the box has the earlier rules, and the host has acknowledged: %v", err)
	}
}

// TestFleetHeadersThatWait: a box that another change holds, or a change of the rules of the host, does not hold up later changes of the fleet, such
// as revoked keys, for longer than a time. The host is behind until then, and the other boxes have the rules.
func TestFleetHeadersThatWait(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	f := g.inFleet("f1")
	g.addBox("b1")
	g.addBox("b2")
	b, err := g.boxes.Find("b1")
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string][]byte{"rules": []byte(`{"one.example":{"X-Key":"v"}}`)}
	f.version = 1
	for _, held := range []sync.Locker{b, &g.changingGlobal} {
		held.Lock()
		g.fleetPatience = 10 * time.Millisecond
		done := make(chan error, 1)
		go func() { done <- g.ApplyFleetHeaders(objects) }()
		select {
		case err := <-done:
			if !errors.Is(err, errBusy) || g.fleetKnown.Load() {
				t.Errorf("%T is held: %v", held, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("%T is held, and the fleet waits", held)
		}
		if _, isBox := held.(*state.Box); isBox {
			b2, err := g.boxes.Find("b2")
			if err != nil || len(b2.Policy.Load().HeaderPatterns()) != 1 {
				t.Errorf("the box that is not held does not have the rules: %v", err)
			}
		}
		held.Unlock()
	}
	g.fleetPatience = time.Minute
	if err := g.ApplyFleetHeaders(objects); err != nil || g.sends("b1", "one.example") != "v" {
		t.Errorf("the locks are free: %v, %q", err, g.sends("b1", "one.example"))
	}
}
