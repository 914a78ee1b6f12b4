package approvals

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"boxgate/api"
	"boxgate/audit/trail"
	"boxgate/boundary"
	"boxgate/host/state"
	"boxgate/internal/ratelimit"
	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store"
)

// fakeRules opens everything whose digest is right.
type fakeRules struct {
	mu     sync.Mutex
	grants []api.Grant
	by     []string
	looked int // candidates that were computed
	fail   error
}

func (r *fakeRules) Policy(context.Context, policy.BoxID) (api.PolicyState, error) {
	return api.PolicyState{}, nil
}

func (r *fakeRules) Entry(_ policy.BoxID, to api.Destination) (api.Destination, string, error) {
	return to, strings.TrimSpace(fmt.Sprintf("%s %s:%d%s", to.Method, to.Host, to.Port, to.Path)), nil
}

func (r *fakeRules) Candidate(_ context.Context, _ policy.BoxID, to api.Destination) (api.Candidate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked++
	return api.Candidate{Digest: "d-" + to.Host, Judged: to.Path == "/judged"}, r.fail
}

func (r *fakeRules) Grant(ctx context.Context, _ policy.BoxID, g api.Grant) (api.PolicyState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g.Digest != "d-"+g.Host {
		return api.PolicyState{}, api.ErrConflict
	}
	r.grants, r.by = append(r.grants, g), append(r.by, api.CallerOf(ctx).Name)
	return api.PolicyState{Version: 2}, nil
}

// fakeTrail keeps entries in memory.
type fakeTrail struct {
	mu      sync.Mutex
	entries []trail.Entry
}

func (t *fakeTrail) Append(e trail.Entry) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = append(t.entries, e)
	return uint64(len(t.entries)), nil
}

// rig is a service over a real store with the boxes b1, made by the key key_1, and b2.
type rig struct {
	*Service
	rules *fakeRules
	trail *fakeTrail
	db    *store.DB
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	db, err := store.Open(store.Options{Dir: t.TempDir() + "/state"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	boxes := &state.Table{}
	for id, by := range map[policy.BoxID]string{"b1": "key_1", "b2": ""} {
		r, err := db.Boxes.Allocate(store.Box{ID: id, State: "creating", CreatedBy: by, PlaceholderKey: store.NewKey()}, store.Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), V6: netip.MustParsePrefix("fd42::/64"), Reserved: 3})
		if err != nil {
			t.Fatal(err)
		}
		boxes.Add(state.NewBox(r, store.Policy{}, store.Headers{}, api.Hosted{}, 0))
	}
	g := &rig{rules: &fakeRules{}, trail: &fakeTrail{}, db: db}
	c := Config{Log: zap.NewNop(), Store: db.Approvals, Records: db.Boxes, Boxes: boxes, Rules: g.rules, Trail: g.trail, Enabled: true, EveryBox: true}
	if change != nil {
		change(&c)
	}
	if g.Service, err = New(c); err != nil {
		t.Fatal(err)
	}
	return g
}

// ask makes a request of b1 that must be stored.
func (g *rig) ask(t *testing.T, host string) api.Approval {
	t.Helper()
	a, created, err := g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: host}, Reason: "x"})
	if err != nil || !created {
		t.Fatal(created, err)
	}
	return a
}

// TestRequestsOfABox: a box has 16 open requests at most and 128 in all, sees no other box's, and the same request is stored once.
func TestRequestsOfABox(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	first := g.ask(t, "h0.example")
	if first.Port != 443 || first.Entry != "h0.example:443" || first.State != api.ApprovalOpen {
		t.Errorf("%+v", first)
	}
	if again, created, err := g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: "h0.example"}, Reason: "y"}); err != nil || created || again.ID != first.ID {
		t.Error("stored twice:", created, err)
	}
	for _, text := range []string{"", " \n", strings.Repeat("x", MostReason+1), "\x1b[2J", "\xff", "a\u0085b"} {
		if _, _, err := g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: "other.example"}, Reason: text}); err == nil {
			t.Errorf("the reason %q was accepted", text)
		}
	}
	for i := 1; i < MostOpen; i++ {
		g.ask(t, fmt.Sprintf("h%d.example", i))
	}
	g.of("b1").fresh = ratelimit.New(1e6, 1e6, func() int64 { return 0 }) // of time, see TestRefusedRequestsAreBounded
	if _, _, err := g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: "more.example"}, Reason: "x"}); !errors.Is(err, api.ErrLimit) {
		t.Error("more open requests than allowed:", err)
	}
	if _, created, err := g.Ask(t.Context(), "b2", api.ApprovalRequest{Destination: api.Destination{Host: "more.example"}, Reason: "x"}); err != nil || !created {
		t.Error("another box:", err)
	}
	if list, err := g.Approvals(t.Context(), "b2"); err != nil || len(list) != 1 {
		t.Error(list, err)
	}
	if _, err := g.Approval(t.Context(), "b2", first.ID); !errors.Is(err, api.ErrNotFound) {
		t.Error("another box's request:", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Wait(over, "b2", first.ID); !errors.Is(err, api.ErrNotFound) {
		t.Error("another box's request:", err)
	}
	// Answered requests count until they expire.
	for asked := MostOpen; ; asked++ {
		list, err := g.Approvals(t.Context(), "b1")
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if a.State != api.ApprovalOpen {
				continue
			}
			if _, _, err := g.AnswerApproval(t.Context(), "b1", a.ID, api.ApprovalAnswer{Answer: "denied", Reason: "no"}); err != nil {
				t.Fatal(err)
			}
		}
		_, _, err = g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: fmt.Sprintf("h%d.example", asked)}, Reason: "x"})
		if errors.Is(err, api.ErrLimit) && asked == MostKept {
			break
		}
		if err != nil || asked >= MostKept {
			t.Fatal(asked, err)
		}
	}
	if err := g.db.Boxes.Delete("b1"); err != nil {
		t.Fatal(err)
	}
	if list, err := g.Store.List("b1"); err != nil || len(list) != 0 {
		t.Error("requests of a deleted box stay:", len(list), err)
	}
	if report, err := g.db.Verify(); err != nil || len(report.Problems) > 0 {
		t.Error(report, err)
	}
}

// TestAnswers: who may answer, which answers have an effect, and that a waiting box gets the answer.
func TestAnswers(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.FourEyes = true })
	as := func(key string, role api.Role) context.Context {
		return api.WithCaller(t.Context(), api.Caller{Key: key, Name: "name of " + key, Role: role, Box: "b1"})
	}
	a := g.ask(t, "a.example")
	yes := api.ApprovalAnswer{Answer: "once", Reason: "fine", Digest: "d-a.example", Lasts: time.Minute}
	if seen, err := g.Approval(as("key_3", api.RoleApprover), "b1", a.ID); err != nil || seen.Barred != "" {
		t.Error("another pair of eyes:", seen.Barred, err)
	}
	for _, ctx := range []context.Context{as("key_1", api.RoleCreator), as("key_2", api.RoleBox)} {
		if seen, err := g.Approval(ctx, "b1", a.ID); err != nil || !strings.Contains(seen.Barred, "another API key") {
			t.Errorf("the request does not tell why its reader may not answer: %+v %v", seen, err)
		}
		if _, _, err := g.AnswerApproval(ctx, "b1", a.ID, yes); !errors.Is(err, api.ErrForbidden) {
			t.Error("one pair of eyes:", err)
		}
	}
	other := as("key_3", api.RoleApprover)
	for _, wrong := range []api.ApprovalAnswer{
		{Answer: "once", Reason: "fine", Digest: "old"}, {Answer: "once", Digest: "d-a.example"}, {Answer: "open", Reason: "x"}, {Answer: "", Reason: "x"},
		{Answer: "once", Reason: "x", Digest: "d-a.example", Lasts: mostAnswer + 1},
	} {
		if _, _, err := g.AnswerApproval(other, "b1", a.ID, wrong); err == nil {
			t.Errorf("%+v was accepted", wrong)
		}
	}
	if len(g.rules.grants) != 0 {
		t.Error("granted:", g.rules.grants)
	}
	if got, _, err := g.AnswerApproval(other, "b1", a.ID, api.ApprovalAnswer{Answer: api.ApprovalNeedsHuman, Reason: "ask the owner"}); err != nil || got.State != api.ApprovalOpen || got.Human != "ask the owner" {
		t.Error(got, err)
	}
	waited := make(chan api.Approval, 1)
	go func() {
		got, err := g.Wait(t.Context(), "b1", a.ID)
		if err != nil {
			t.Error(err)
		}
		waited <- got
	}()
	if got, _, err := g.AnswerApproval(other, "b1", a.ID, yes); err != nil || got.By != "name of key_3" || got.Until.IsZero() {
		t.Error(got, err)
	}
	if got := <-waited; got.State != api.ApprovalOnce || got.Answer != "fine" {
		t.Error("the box that waits:", got)
	}
	if _, _, err := g.AnswerApproval(other, "b1", a.ID, yes); !errors.Is(err, api.ErrConflict) {
		t.Error("answered twice:", err)
	}
	if len(g.rules.grants) != 1 || g.rules.grants[0] != (api.Grant{Destination: api.Destination{Host: "a.example", Port: 443}, Digest: "d-a.example", Lasts: time.Minute}) {
		t.Error(g.rules.grants)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := g.Wait(ctx, "b1", g.ask(t, "b.example").ID); err != nil || got.State != api.ApprovalOpen {
		t.Error(got, err)
	}
}

// TestHandover: while the store is with another process, a box waits; then it gets its request as it is, and everything else is refused
// so that the box makes it again. The next process knows the open requests, and has those reviewed that were not.
func TestHandover(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	a := g.ask(t, "a.example")
	begun, waited := make(chan bool), make(chan api.Approval, 1)
	go func() {
		close(begun)
		got, err := g.Wait(t.Context(), "b1", a.ID)
		if err != nil {
			t.Error(err)
		}
		waited <- got
	}()
	<-begun
	until(t, "the box waits", func() bool { _, waits, _ := g.standing(); return waits == 1 })
	g.Release()
	if _, err := g.Approvals(t.Context(), "b1"); err != nil {
		t.Error("the store is still open:", err)
	}
	if err := g.db.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-waited:
		t.Error("the box did not wait until the next process serves")
	default:
	}
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if g.Serves(short) {
		t.Error("served without the store")
	}
	for what, call := range map[string]func() error{
		"ask": func() error {
			_, _, err := g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: "b.example"}, Reason: "x"})
			return err
		},
		"wait": func() error { _, err := g.Wait(t.Context(), "b1", a.ID); return err },
		"list": func() error { _, err := g.Approvals(t.Context(), "b1"); return err },
	} {
		if err := call(); !errors.Is(err, api.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	g.Retire()
	g.Retire()
	if got := <-waited; got.State != api.ApprovalOpen || got.ID != a.ID {
		t.Errorf("%+v", got)
	}
	if g.Serves(t.Context()) {
		t.Error("served after another process")
	}
}

// TestReadingTakesNoCompilation: what a box reads, and a request beyond a bound, computes no effect of an approval, which takes a compilation
// of its policy.
func TestReadingTakesNoCompilation(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	for i := range MostOpen {
		g.ask(t, fmt.Sprintf("h%d.example", i))
	}
	before := g.rules.looked
	inside := &Inside{Service: g.Service}
	list, err := inside.Approvals(t.Context(), "b1")
	if err != nil || len(list) != MostOpen {
		t.Fatal(len(list), err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := inside.Approval(t.Context(), "b1", list[0].ID); err != nil {
		t.Error(err)
	}
	if _, err := inside.Wait(ended, "b1", list[0].ID); err != nil {
		t.Error(err)
	}
	_, _, _ = inside.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: "more.example"}, Reason: "x"})
	if g.rules.looked != before {
		t.Errorf("%d effects were computed", g.rules.looked-before)
	}
	if _, err := g.Approvals(t.Context(), "b1"); err != nil || g.rules.looked != before+MostOpen {
		t.Error("people do not see the effects:", g.rules.looked, err)
	}
	if open, waits, _ := g.standing(); open != MostOpen || waits != 0 {
		t.Error(open, waits)
	}
	for d, want := range map[boundary.Denial]string{
		{Reason: name.ReasonNotAllowed, Host: "h0.example", Port: 443}: list[0].ID, {Reason: name.ReasonNotAllowed, Host: "h0.example"}: list[0].ID, {Reason: name.ReasonNotAllowed, Host: "h0.example", Port: 80}: "",
		{Reason: name.ReasonNotAllowed, Host: "other.example", Port: 443}: "", {Reason: name.ReasonRequestRule, Host: "h0.example", Port: 443, Method: "GET", Path: "/"}: "",
	} {
		if got := inside.Asked("b1", d); got != want {
			t.Errorf("%v: %q", d, got)
		}
		if got := inside.Asked("b2", d); got != "" {
			t.Errorf("%v of another box: %q", d, got)
		}
	}
	if _, _, err := g.AnswerApproval(t.Context(), "b1", list[0].ID, api.ApprovalAnswer{Answer: string(api.ApprovalDenied), Reason: "no"}); err != nil {
		t.Fatal(err)
	}
	if got := inside.Asked("b1", boundary.Denial{Reason: name.ReasonNotAllowed, Host: "h0.example", Port: 443}); got != "" {
		t.Error("an answered request is open:", got)
	}
}

// TestAutomaticApprovalOfRequests: request rules of policies are opened automatically only for hosts whose requests the ceiling limits too.
func TestAutomaticApprovalOfRequests(t *testing.T) {
	t.Parallel()
	g := newRig(t, func(c *Config) { c.Automatic = true })
	for _, c := range []struct {
		to    api.Destination
		state api.ApprovalState
	}{
		{api.Destination{Host: "a.example"}, api.ApprovalOnce}, {api.Destination{Host: "a.example", Method: "DELETE", Path: "/judged"}, api.ApprovalOnce},
		{api.Destination{Host: "a.example", Method: "DELETE", Path: "/"}, api.ApprovalOpen},
	} {
		for range 2 {
			if got, _, err := g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: c.to, Reason: "x"}); err != nil || got.State != c.state {
				t.Errorf("%v: %v %v", c.to, got.State, err)
			}
		}
	}
}

// TestAskingAgain: a box that asks again learns that its destination has been allowed by a change of the policy, though the request is open.
func TestAskingAgain(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	a := g.ask(t, "a.example")
	again := func() (api.Approval, error) {
		got, _, err := g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: "a.example"}, Reason: "x"})
		return got, err
	}
	for _, fail := range []error{nil, api.ErrForbidden} {
		g.rules.fail = fail
		if got, err := again(); err != nil || got.ID != a.ID {
			t.Error(fail, got, err)
		}
	}
	g.rules.fail = api.ErrConflict
	if got, err := again(); !errors.Is(err, api.ErrConflict) {
		t.Error(got, err)
	}
}

// TestWaitsOfABoxAreBounded: one more response than a box may have waiting is refused, without effect on other boxes, and each gives its
// place back.
func TestWaitsOfABoxAreBounded(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	a := g.ask(t, "a.example")
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range MostWaits {
		waiting.Go(func() {
			if got, err := g.Wait(ctx, "b1", a.ID); err != nil || got.State != api.ApprovalOpen {
				t.Error(got, err)
			}
		})
	}
	until(t, "all wait", func() bool { _, waits, _ := g.standing(); return waits == MostWaits })
	if _, err := g.Wait(t.Context(), "b1", a.ID); !errors.Is(err, api.ErrLimit) {
		t.Error("beyond the bound:", err)
	}
	if _, err := g.Wait(t.Context(), "b2", a.ID); !errors.Is(err, api.ErrNotFound) {
		t.Error("another box:", err)
	}
	cancel()
	waiting.Wait()
	if _, waits, _ := g.standing(); waits != 0 {
		t.Error(waits, "places are not given back")
	}
	// A request that expires ends the waiting.
	if _, err := g.db.Approvals.Change("b1", a.ID, func(r *store.Approval) error { r.ExpiresAt = time.Now().Add(50 * time.Millisecond); return nil }); err != nil {
		t.Fatal(err)
	}
	if got, err := g.Wait(t.Context(), "b1", a.ID); !errors.Is(err, api.ErrNotFound) {
		t.Error("an expired request:", got, err)
	}
}

// TestRefusedRequestsAreBounded: requests that are refused are not stored, but each takes a compilation of the policy, so a box makes
// few of them.
func TestRefusedRequestsAreBounded(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	g.rules.fail = api.ErrForbidden
	limited := 0
	for i := range 4 * newBurst {
		if _, _, err := g.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: fmt.Sprintf("h%d.example", i)}, Reason: "x"}); errors.Is(err, api.ErrLimit) {
			limited++
		}
	}
	if g.rules.looked > 2*newBurst || limited == 0 {
		t.Errorf("%d effects were computed, %d requests refused by the limit", g.rules.looked, limited)
	}
	g.rules.fail = nil
	if _, created, err := g.Ask(t.Context(), "b2", api.ApprovalRequest{Destination: api.Destination{Host: "a.example"}, Reason: "x"}); err != nil || !created {
		t.Error("another box:", err)
	}
}

// TestAReviewerThatMisbehaves: redirects are not followed, nor answers read that are no answers, too long, or for an impossible time; the
// signing key is not in the log.
func TestAReviewerThatMisbehaves(t *testing.T) {
	t.Parallel()
	const signing = "0123456789abcdef01234567"
	key := "whsec_" + base64.StdEncoding.EncodeToString([]byte(signing))
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	t.Cleanup(other.Close)
	yes := `{"answer":"once","reason":"fine","candidate":"d-%s"%s}`
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var got webhookBody
		_ = json.NewDecoder(r.Body).Decode(&got)
		host := strings.TrimSuffix(got.Data.Entry, ":443")
		switch host {
		case "redirect.example":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		case "error.example":
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, yes, host, "")
		case "long.example":
			fmt.Fprintf(w, yes, host, `,"more":"`+strings.Repeat("x", mostAnswerBytes)+`"`)
		case "overflow.example": // 2^64 nanoseconds and an hour, in seconds
			fmt.Fprintf(w, yes, host, `,"expires_in":18446747673`)
		case "negative.example":
			fmt.Fprintf(w, yes, host, `,"expires_in":-1`)
		case "control.example":
			fmt.Fprintf(w, `{"answer":"denied","reason":"\u001b[2J"}`)
		case "kind.example":
			fmt.Fprintf(w, `{"answer":"open","reason":"x","candidate":"d-kind.example"}`)
		}
	}))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	roots.AddCert(other.Certificate())
	logged := &bytes.Buffer{}
	g := newRig(t, func(c *Config) {
		c.Reviewer = NewWebhook(server.URL, func(context.Context) (name.Secret, error) { return name.NewSecret(key), nil }, roots)
		c.Log = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "m"}), zapcore.AddSync(logged), zap.DebugLevel))
	})
	for _, host := range []string{"redirect.example", "error.example", "long.example", "overflow.example", "negative.example", "control.example", "kind.example", "empty.example"} {
		g.Service.ask(t.Context(), <-func() chan store.Approval { g.ask(t, host); return g.queue }())
	}
	list, err := g.Approvals(t.Context(), "b1")
	if err != nil || len(list) != 8 || len(g.rules.grants) > 0 {
		t.Fatal(len(list), g.rules.grants, err)
	}
	for _, a := range list {
		if a.State != api.ApprovalOpen || a.Human != "" {
			t.Errorf("%+v", a)
		}
	}
	if text := logged.String(); strings.Contains(text, signing) || strings.Contains(text, key) || !strings.Contains(text, "left to people") {
		t.Error(text)
	}
}

// TestTwoApprovers: of several answers at the same time one counts, and the access is given once.
func TestTwoApprovers(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	a := g.ask(t, "a.example")
	var all sync.WaitGroup
	var mu sync.Mutex
	given := map[string]int{}
	for i := range 16 {
		all.Go(func() {
			answer := api.ApprovalAnswer{Answer: []string{"once", "always", "denied"}[i%3], Reason: "x", Digest: "d-a.example"}
			got, _, err := g.AnswerApproval(api.WithCaller(t.Context(), api.Caller{Key: fmt.Sprint("key_", i+2)}), "b1", a.ID, answer)
			mu.Lock()
			defer mu.Unlock()
			if given[fmt.Sprint(errors.Is(err, api.ErrConflict))]++; err == nil && string(got.State) != answer.Answer {
				t.Error(got.State, answer.Answer)
			}
		})
	}
	all.Wait()
	if given["false"] != 1 || given["true"] != 15 || len(g.rules.grants) > 1 {
		t.Error(given, g.rules.grants)
	}
}

// TestAnEarlierProcessLeftRequests: the open requests of an earlier process are reviewed, and approved below the ceiling once the box asks
// again.
func TestAnEarlierProcessLeftRequests(t *testing.T) {
	t.Parallel()
	g := newRig(t, nil)
	a := g.ask(t, "a.example")
	c := g.Config
	c.Automatic = true
	next, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if open, _, _ := g.standing(); open != 1 {
		t.Error("open requests:", open)
	}
	got, created, err := next.Ask(t.Context(), "b1", api.ApprovalRequest{Destination: api.Destination{Host: "a.example"}, Reason: "x"})
	if err != nil || created || got.ID != a.ID || got.State != api.ApprovalOnce {
		t.Error(got, created, err)
	}
	late := g.ask(t, "late.example")
	if err := next.takeStock(); err != nil {
		t.Fatal(err)
	}
	if got, err := next.Approval(t.Context(), "b1", late.ID); err != nil || got.State != api.ApprovalOnce || got.By != byCeiling {
		t.Error(got, err)
	}
	g.ask(t, "b.example")
	c.Automatic, c.Reviewer = false, reviewer(func(r Review) (api.ApprovalAnswer, error) {
		return api.ApprovalAnswer{Answer: string(api.ApprovalDenied), Reason: "no"}, nil
	})
	if next, err = New(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { _ = next.Serve(ctx) })
	defer serving.Wait()
	defer cancel()
	until(t, "the request is reviewed", func() bool {
		list, err := next.Approvals(t.Context(), "b1")
		return err == nil && len(list) == 3 && list[2].State == api.ApprovalDenied
	})
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("did not happen:", what)
		}
	}
}

// reviewer is a [Reviewer] in this process.
type reviewer func(r Review) (api.ApprovalAnswer, error)

func (f reviewer) Review(_ context.Context, r Review) (api.ApprovalAnswer, error) { return f(r) }

// TestReviewer: a reviewer gets signed requests and answers them; an answer that is not one, or is for another candidate, leaves the
// request to people.
func TestReviewer(t *testing.T) {
	t.Parallel()
	key := "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef01234567"))
	answers := map[string]string{
		"yes.example": `{"answer":"once","reason":"fine","candidate":"d-yes.example","expires_in":60}`, "no.example": `{"answer":"denied","reason":"no"}`,
		"other.example": `{"answer":"once","reason":"fine","candidate":"d-yes.example"}`, "person.example": `{"answer":"needs_human","reason":"unsure"}`, "none.example": `nonsense`,
	}
	var mu sync.Mutex
	reviewed := map[string]int{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var got webhookBody
		if err := json.Unmarshal(body, &got); err != nil || got.Type != "boxgate.approval" || !strings.HasPrefix(r.Header.Get("Webhook-Signature"), "v1,") || r.Header.Get("Webhook-Id") != got.Data.ID {
			t.Errorf("%v: %s %v", err, body, r.Header)
		}
		host := strings.TrimSuffix(got.Data.Entry, ":443")
		mu.Lock()
		reviewed[host]++
		mu.Unlock()
		_, _ = io.WriteString(w, answers[host])
	}))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	g := newRig(t, func(c *Config) {
		c.Reviewer = NewWebhook(server.URL, func(context.Context) (name.Secret, error) { return name.NewSecret(key), nil }, roots)
	})
	ids := map[string]string{}
	for host := range answers {
		ids[host] = g.ask(t, host).ID
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(ctx) }()
	for host, want := range map[string]api.ApprovalState{"yes.example": api.ApprovalOnce, "no.example": api.ApprovalDenied} {
		if got, err := g.Wait(t.Context(), "b1", ids[host]); err != nil || got.State != want || got.By != byReviewer {
			t.Error(host, got, err)
		}
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		person, err := g.Approval(t.Context(), "b1", ids["person.example"])
		mu.Lock()
		all := len(reviewed)
		mu.Unlock()
		if err != nil || person.Human == "unsure" && all == len(answers) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(person, all)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, host := range []string{"other.example", "person.example", "none.example"} {
		if got, err := g.Approval(t.Context(), "b1", ids[host]); err != nil || got.State != api.ApprovalOpen {
			t.Error(host, got, err)
		}
	}
	if len(g.rules.grants) != 1 {
		t.Error(g.rules.grants)
	}
	if len(g.trail.entries) != 3 || g.trail.entries[0].Key != byReviewer { // yes, no, and needs_human
		t.Error(g.trail.entries)
	}
}
