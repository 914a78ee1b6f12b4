package store

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule/header"
	"boxgate/store/document"
	"boxgate/store/history"
	"boxgate/store/layout"
)

// sameRules compares header rules with their values. Empty and nil lists are equal.
var sameRules = cmp.Options{
	secrets, cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b name.Pattern) bool { return a == b }), cmp.Comparer(func(a, b name.Name) bool { return a == b }),
}

// listedStore returns a copy of a store of the last version that stored rules as lists, and the rules that are in it.
func listedStore(t *testing.T) (dir string, want []policy.HeaderRule) {
	t.Helper()
	dir = newDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, name := range []string{"boxgate.db.gz", "secret.key", "rules.json"} {
		data, err := os.ReadFile(filepath.Join("testdata", "listed", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = data
	}
	packed, err := gzip.NewReader(bytes.NewReader(files["boxgate.db.gz"]))
	if err != nil {
		t.Fatal(err)
	}
	db, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{layout.FileDB: db, "secret.key": files["secret.key"]} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err = policy.ParseHeaderRules(files["rules.json"], nil); err != nil {
		t.Fatal(err)
	}
	return dir, want
}

// TestRulesStoredAsLists: rules of every kind are read if the last version with a field per kind has stored them. Rules that are
// set again are stored as a document.
func TestRulesStoredAsLists(t *testing.T) {
	t.Parallel()
	dir, want := listedStore(t)
	db := open(t, Options{Dir: dir})
	of := func(h Headers, err error) func(string, uint64, []policy.HeaderRule) {
		return func(what string, version uint64, want []policy.HeaderRule) {
			t.Helper()
			if err != nil || h.Version != version {
				t.Fatalf("%s: version %d, %v; want %d", what, h.Version, err, version)
			}
			if diff := cmp.Diff(want, h.Rules, sameRules); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
		}
	}
	of(db.Rules.Headers("b1"))("box", 7, want)
	of(db.Rules.GlobalHeaders())("global", 3, want)
	staged, err := db.Rules.StagedHeaders()
	of(staged["b1"], err)("staged", 8, want[:1])
	if err := db.Rules.CommitHeaders("b1"); err != nil {
		t.Fatal(err)
	}
	of(db.Rules.Headers("b1"))("committed", 8, want[:1])
	if err := db.Rules.SetHeaders("b1", want, 9); err != nil {
		t.Fatal(err)
	}
	of(db.Rules.Headers("b1"))("set again", 9, want)
	if stored := storedRules(t, db, "b1"); stored[0] != '{' {
		t.Errorf("rules that were set are stored in the form that begins with %q", stored[0])
	}
	if err := db.Rules.SetHeaders("b1", nil, 10); err != nil {
		t.Fatal(err)
	}
	of(db.Rules.Headers("b1"))("removed", 10, nil)
	if stored := storedRules(t, db, "b1"); stored != "null" {
		t.Errorf("no rules are stored as %s, which an older version does not read", stored)
	}
}

// storedRules returns the stored form of the rules of a box.
func storedRules(t *testing.T, db *DB, box policy.BoxID) string {
	t.Helper()
	var rec headersRecord
	err := db.view(func(tx *transaction) (err error) {
		rec, err = readHeaders(tx, string(box))
		return err
	})
	if err != nil || len(rec.Rules) == 0 {
		t.Fatal(rec.Version, err)
	}
	return string(rec.Rules)
}

// TestRulesOfAnotherVersionAreRefused: rules with an unknown part are refused, not read without it, and the error contains no
// secret.
func TestRulesOfAnotherVersionAreRefused(t *testing.T) {
	t.Parallel()
	for name, stored := range map[string]string{
		"unknown key of an entry":       `{"a.test": {"headers": {"X": "canary"}, "new": true}}`,
		"unknown kind of login":         `{"a.test:25": {"smtp": {"user": "u", "password": {"value": "canary"}}}}`,
		"unknown place":                 `{"a.test": {"placeholders": {"K": "canary"}, "places": ["nowhere"]}}`,
		"no object":                     `"canary"`,
		"number":                        `1`,
		"list, unknown field":           `[{"pattern": "a.test", "headers": [{"name": "X", "value": "canary"}], "new": true}]`,
		"list, unknown login":           `[{"pattern": "a.test:25", "headers": null, "login": {}}]`,
		"list, unknown signature":       `[{"pattern": "a.test", "headers": null, "sign": {}}]`,
		"list, unknown authentication":  `[{"pattern": "a.test:5432", "headers": null, "login": {"postgres": {"user": "u", "database": "d", "password": "canary", "auth": "new"}}}]`,
		"list, no pattern":              `[{"headers": [{"name": "X", "value": "canary"}]}]`,
		"list, the URL of another form": `[{"pattern": "a.test", "headers": null, "forward_url": "http://canary.test"}]`,
	} {
		h, err := headersRecord{1, json.RawMessage(stored)}.headers()
		if err == nil || len(h.Rules) > 0 {
			t.Errorf("%s: read as %d rules, %v", name, len(h.Rules), err)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
	}
}

// TestAttackOlderProgramIgnoresPrecedence: a program that does not know the precedence of a stored policy does not read the policy. One
// without it is stored as before.
func TestAttackOlderProgramIgnoresPrecedence(t *testing.T) {
	t.Parallel()
	type older struct { // the fields of a spec before precedence
		Mode           string   `json:"mode"`
		AllowedDomains []string `json:"allowed_domains"`
		DeniedDomains  []string `json:"denied_domains"`
	}
	for precedence, readable := range map[policy.Precedence]bool{"": true, policy.PrecedenceSpecific: false} {
		dir := newDir(t)
		db := open(t, Options{Dir: dir})
		allocate(t, db, Box{ID: "b1"})
		spec := custom("*", "ok.evil.test")
		spec.DeniedDomains, spec.Precedence = []string{"*.evil.test"}, precedence
		if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: spec, Version: 1}, history.Origin{}), db.Rules.CommitPolicy("b1"), db.Close()); err != nil {
			t.Fatal(err)
		}
		db = open(t, Options{Dir: dir})
		stored, err := db.Rules.Policy("b1")
		if err != nil || !reflect.DeepEqual(stored.Spec, spec) {
			t.Errorf("%+v came back as %+v, %v", spec, stored.Spec, err)
		}
		data, err := json.Marshal(stored.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := document.Decode(data, &older{}); (err == nil) != readable {
			t.Errorf("%s is read with %v", data, err)
		}
	}
}

func custom(domains ...string) policy.Spec {
	return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains}
}

// following returns a store with the named policy "web" that b1 and b2 follow, and b3, which does not.
func following(t *testing.T) (dir string, db *DB) {
	t.Helper()
	dir = newDir(t)
	db = open(t, Options{Dir: dir})
	if err := errors.Join(db.Rules.StageNamed("web", Policy{Spec: custom("old.example"), Version: 1}, nil, history.Origin{}), db.Rules.CommitNamed("web", nil)); err != nil {
		t.Fatal(err)
	}
	for id, p := range map[policy.BoxID]Policy{
		"b1": {Spec: custom("old.example"), Version: 7, Named: "web"}, "b2": {Spec: custom("old.example"), Version: 1, Named: "web"}, "b3": {Spec: custom("own.example"), Version: 1},
	} {
		allocate(t, db, Box{ID: id, State: "idle"})
		if err := errors.Join(db.Rules.StagePolicy(id, p, history.Origin{}), db.Rules.CommitPolicy(id)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, db
}

// saying returns the first allowed domain of a named policy and of the boxes b1 and b2.
func saying(t *testing.T, db *DB) (out []string) {
	t.Helper()
	named, err := db.Rules.NamedPolicies()
	b1, err1 := db.Rules.Policy("b1")
	b2, err2 := db.Rules.Policy("b2")
	if err := errors.Join(err, err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, p := range []Policy{named["web"], b1, b2} {
		out = append(out, p.Spec.AllowedDomains[0])
	}
	return out
}

// next returns the policies of the boxes after a change of the named one.
func next(domain string, v1, v2 uint64) map[policy.BoxID]Policy {
	return map[policy.BoxID]Policy{"b1": {Spec: custom(domain), Version: v1, Named: "web"}, "b2": {Spec: custom(domain), Version: v2, Named: "web"}}
}

// A named policy and the policies of its boxes are committed together or not at all, and staged ones are dropped.
func TestNamedPolicyChangesWithItsBoxes(t *testing.T) {
	t.Parallel()
	dir, db := following(t)
	boxes := []policy.BoxID{"b1", "b2"}
	before, after := []string{"old.example", "old.example", "old.example"}, []string{"new.example", "new.example", "new.example"}
	for name, err := range map[string]error{
		"one box has that version already": db.Rules.StageNamed("web", Policy{Spec: custom("new.example"), Version: 2}, next("new.example", 8, 1), history.Origin{}),
		"it has that version already":      db.Rules.StageNamed("web", Policy{Spec: custom("new.example"), Version: 1}, next("new.example", 8, 2), history.Origin{}),
	} {
		if staged, _ := db.Rules.Staged(); !errors.Is(err, ErrConflict) || len(staged) > 0 {
			t.Errorf("%s: %v, staged %v", name, err, staged)
		}
	}
	stage := func(version uint64) {
		t.Helper()
		if err := db.Rules.StageNamed("web", Policy{Spec: custom("new.example"), Version: 2}, next("new.example", version, version-6), history.Origin{}); err != nil || !slices.Equal(saying(t, db), before) {
			t.Fatalf("%v, %q", err, saying(t, db))
		}
	}
	stage(8)
	if err := errors.Join(db.Rules.AbortPolicy("b2")); err != nil {
		t.Fatal(err)
	}
	if err := db.Rules.CommitNamed("web", boxes); !errors.Is(err, ErrNotFound) || !slices.Equal(saying(t, db), before) {
		t.Errorf("half of it was staged: %v, %q", err, saying(t, db))
	}
	if err := db.Rules.AbortNamed("web", boxes); err != nil {
		t.Fatal(err)
	}
	if left := contents(t, db)["staged"]; len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	stage(9) // 8 was rolled back
	crashed := open(t, Options{Dir: copyState(t, dir)})
	dropped, err := crashed.Rules.DropStaged()
	if err != nil || len(dropped) != 3 || !slices.Contains(dropped, StagedChange{Named: "web"}) || !slices.Contains(dropped, StagedChange{Box: "b2"}) || !slices.Equal(saying(t, crashed), before) {
		t.Errorf("after a crash: %+v %v, %q", dropped, err, saying(t, crashed))
	}
	if err := db.Rules.CommitNamed("web", boxes); err != nil || !slices.Equal(saying(t, db), after) {
		t.Errorf("%v, %q", err, saying(t, db))
	}
	if r, err := db.Verify(); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}
}

// A backup contains named policies, and which boxes follow them.
func TestNamedPoliciesAreInBackups(t *testing.T) {
	t.Parallel()
	dir, db := following(t)
	if _, err := db.Keys.Ensure(); err != nil {
		t.Fatal(err)
	}
	from := backup(t, db)
	if err := errors.Join(db.Rules.StageNamed("web", Policy{Spec: custom("new.example"), Version: 2}, next("new.example", 8, 2), history.Origin{}), db.Rules.CommitNamed("web", []policy.BoxID{"b1", "b2"}), db.bolt.Close()); err != nil {
		t.Fatal(err)
	}
	if r, err := Restore(RestoreOptions{Dir: dir, From: from}); err != nil || len(r.Problems) > 0 {
		t.Fatalf("%+v %v", r, err)
	}
	db = open(t, Options{Dir: dir})
	if got := saying(t, db); !slices.Equal(got, []string{"old.example", "old.example", "old.example"}) {
		t.Errorf("%q", got)
	}
	if p, err := db.Rules.Policy("b2"); err != nil || p.Named != "web" {
		t.Errorf("%+v %v", p, err)
	}
}

// A named policy in use cannot be deleted, and a box whose policy differs from the one it follows is reported.
func TestNamedPolicyInUse(t *testing.T) {
	t.Parallel()
	_, db := following(t)
	if err := db.Rules.DeleteNamed("web"); !errors.Is(err, ErrConflict) {
		t.Errorf("two boxes follow it: %v", err)
	}
	if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: custom("other.example"), Version: 8, Named: "web"}, history.Origin{}), db.Rules.CommitPolicy("b1"),
		db.Rules.StagePolicy("b2", Policy{Spec: custom("old.example"), Version: 2, Named: "gone"}, history.Origin{}), db.Rules.CommitPolicy("b2")); err != nil {
		t.Fatal(err)
	}
	r, err := db.Verify()
	if err != nil || len(r.Problems) != 2 || !strings.Contains(r.Problems[0], `differs from the named policy "web"`) || !strings.Contains(r.Problems[1], `"gone", which does not exist`) {
		t.Errorf("%+v %v", r, err)
	}
	if err := errors.Join(db.Boxes.Delete("b1"), db.Rules.DeleteNamed("web")); err != nil {
		t.Error(err)
	}
	if named, err := db.Rules.NamedPolicies(); err != nil || len(named) != 0 {
		t.Errorf("%v %v", named, err)
	}
	if err := db.Rules.DeleteNamed("web"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// TestHeaderRulesRoundTrip: every field comes back, after the store was closed; no value and no token is in the file.
func TestHeaderRulesRoundTrip(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db := open(t, Options{Dir: dir})
	want, err := policy.ParseHeaderRules([]byte(`{"a.test:8443": {
		"headers": {"Authorization": {"secret": "openai", "prefix": "canary-prefix ", "suffix": " canary-suffix"}, "X": "canary-literal"},
		"placeholders": {"KEY": {"secret": "openai"}, "OTHER": "canary-other"}, "scrub": true}, "b.test": {}, "*.c.test": {"X": ""},
		"d.test": [{"match": {"methods": ["GET"], "path": {"regex": "^/a"}, "query": {"q": {"exact": ""}}, "headers": [{"key": {"prefix": "x-"}}]}, "deny": true},
			{"headers": {"B": "canary-second"}, "remove": ["A"]}],
		"e.test": {"client_certificate": {"certificate": {"secret": "cert"}, "key": {"secret": "key"}}}, "f.test": {"forward_url": "https://proxy.test:8443/in/", "remove": ["A"]}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	key := NewKey()
	allocate(t, db, Box{ID: "b1", PlaceholderKey: key})
	with := policy.WithTokens(want, key)
	if err := db.Rules.SetHeaders("b1", with, 1); err != nil {
		t.Fatal(err)
	}
	if err := db.Rules.SetGlobalHeaders(want, 1); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, layout.FileDB))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"canary", key.Reveal(), "bxgph_"} {
		if bytes.Contains(data, []byte(s)) {
			t.Errorf("the file holds %q", s)
		}
	}
	db = open(t, Options{Dir: dir})
	patterns := cmp.Options{cmp.Comparer(func(a, b name.Pattern) bool { return a == b }), cmp.Comparer(func(a, b name.Name) bool { return a == b })}
	for name, read := range map[string]func() (Headers, error){"box": func() (Headers, error) { return db.Rules.Headers("b1") }, "global": db.Rules.GlobalHeaders} {
		got, err := read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Rules, secrets, patterns); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if b, err := db.Boxes.Get("b1"); err != nil || !b.PlaceholderKey.Equal(key) {
		t.Errorf("the key of the box does not come back: %v", err)
	}
}

// TestRecordsOfOlderVersions: rules and boxes as they were written before rules had sources and boxes a key.
func TestRecordsOfOlderVersions(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1", PlaceholderKey: NewKey()})
	old := map[string]json.RawMessage{
		string(layout.Headers): json.RawMessage(`{"version":3,"rules":[{"pattern":"a.test","headers":[{"name":"X","value":"1"}]},{"pattern":"b.test","headers":null}]}`),
		string(layout.Secrets): json.RawMessage(`{"env":{"A":"b"}}`),
	}
	for bucket, record := range old {
		err := db.update(func(tx *transaction) error {
			return tx.putSealed([]byte(bucket), "b1", record)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := db.Rules.Headers("b1")
	if err != nil || got.Version != 3 || len(got.Rules) != 2 || header.Of(got.Rules[0].Effects)[0].Literal.Reveal() != "1" || got.Rules[1].Applies() {
		t.Errorf("%+v %v", got, err)
	}
	b, err := db.Boxes.Get("b1")
	if err != nil || b.Env["A"].Reveal() != "b" || b.PlaceholderKey.Reveal() != "" {
		t.Errorf("%+v %v", b, err)
	}
	b.PlaceholderKey = NewKey()
	if err := db.Boxes.Update(b); err != nil {
		t.Fatal(err)
	}
	if again, err := db.Boxes.Get("b1"); err != nil || !again.PlaceholderKey.Equal(b.PlaceholderKey) || again.Env["A"].Reveal() != "b" {
		t.Errorf("%+v %v", again, err)
	}
}

// valueOf returns the value of the only header.
func valueOf(t *testing.T, h Headers, err error) string {
	t.Helper()
	if err != nil || len(h.Rules) != 1 {
		t.Errorf("%+v %v", h, err)
		return ""
	}
	return header.Of(h.Rules[0].Effects)[0].Literal.Reveal()
}

// stagedStore has a box with committed and staged rules, and committed and staged rules for all boxes.
func stagedStore(t *testing.T) (dir string, db *DB) {
	t.Helper()
	dir = newDir(t)
	db = open(t, Options{Dir: dir})
	allocate(t, db, Box{ID: "b1"})
	if err := errors.Join(
		db.Rules.SetHeaders("b1", rules(t, "api.example.com", "X-Key", "old"), 1), db.Rules.StageHeaders("b1", rules(t, "api.example.com", "X-Key", "new"), 2, history.Origin{}),
		db.Rules.SetGlobalHeaders(rules(t, "api.example.com", "X-Key", "old global"), 1), db.Rules.StageGlobalHeaders(rules(t, "api.example.com", "X-Key", "new global"), 2, history.Origin{}),
	); err != nil {
		t.Fatal(err)
	}
	return dir, db
}

// After a crash between the two steps of a change of header rules, the committed ones are valid and the staged ones are
// dropped.
func TestStagedHeadersAreDroppedAfterACrash(t *testing.T) {
	t.Parallel()
	dir, _ := stagedStore(t)
	db := open(t, Options{Dir: copyState(t, dir)})
	staged, err := db.Rules.StagedHeaders()
	if err != nil || valueOf(t, staged["b1"], nil) != "new" || valueOf(t, staged[""], nil) != "new global" {
		t.Errorf("staged: %+v %v", staged, err)
	}
	if policies, err := db.Rules.Staged(); err != nil || len(policies) != 0 {
		t.Errorf("staged policies: %+v %v", policies, err)
	}
	dropped, err := db.Rules.DropStaged()
	if want := []StagedChange{{Headers: true}, {Box: "b1", Headers: true}}; err != nil || !slices.Equal(dropped, want) {
		t.Errorf("dropped %+v %v", dropped, err)
	}
	if err := errors.Join(db.Rules.CommitHeaders("b1"), db.Rules.CommitGlobalHeaders()); !errors.Is(err, ErrNotFound) {
		t.Errorf("committing what was dropped: %v", err)
	}
	if own, err := db.Rules.Headers("b1"); valueOf(t, own, err) != "old" || own.Version != 1 {
		t.Errorf("the box has version %d", own.Version)
	}
	if all, err := db.Rules.GlobalHeaders(); valueOf(t, all, err) != "old global" || all.Version != 1 {
		t.Errorf("all boxes have version %d", all.Version)
	}
}

// A policy and header rules of one box are staged independently: committing or aborting one does not affect the other.
func TestPolicyAndHeadersAreStagedApart(t *testing.T) {
	t.Parallel()
	_, db := stagedStore(t)
	if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{Mode: policy.ModeDenyAll}, Version: 1}, history.Origin{}), db.Rules.CommitPolicy("b1"), db.Rules.AbortPolicy("b1")); err != nil {
		t.Fatal(err)
	}
	if own, err := db.Rules.Headers("b1"); valueOf(t, own, err) != "old" {
		t.Error("the header rules went with the policy")
	}
	if err := errors.Join(db.Rules.AbortGlobalHeaders(), db.Rules.CommitHeaders("b1")); err != nil {
		t.Fatal(err)
	}
	if own, err := db.Rules.Headers("b1"); valueOf(t, own, err) != "new" || own.Version != 2 {
		t.Errorf("version %d", own.Version)
	}
	if all, err := db.Rules.GlobalHeaders(); valueOf(t, all, err) != "old global" {
		t.Errorf("version %d", all.Version)
	}
}

// Rules staged under one key of the store can be committed under another.
func TestStagedHeadersOutliveAChangeOfTheKey(t *testing.T) {
	t.Parallel()
	_, db := stagedStore(t)
	if err := errors.Join(db.RotateKey(name.Secret{}), db.Rules.CommitHeaders("b1"), db.Rules.CommitGlobalHeaders()); err != nil {
		t.Fatal(err)
	}
	if own, err := db.Rules.Headers("b1"); valueOf(t, own, err) != "new" {
		t.Errorf("version %d", own.Version)
	}
	if all, err := db.Rules.GlobalHeaders(); valueOf(t, all, err) != "new global" {
		t.Errorf("version %d", all.Version)
	}
}

// A deleted box leaves no staged documents, and a document for a missing box cannot be staged.
func TestDeletedBoxLeavesNothingStaged(t *testing.T) {
	t.Parallel()
	_, db := stagedStore(t)
	if err := errors.Join(db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 1}, history.Origin{}), db.Boxes.Delete("b1"), db.Rules.AbortGlobalHeaders()); err != nil {
		t.Fatal(err)
	}
	if left := contents(t, db)["staged"]; len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := db.Rules.StageHeaders("b1", nil, 3, history.Origin{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("staged for a box that is gone: %v", err)
	}
}

// Staged header rules are sealed for their place: they cannot be read as committed ones.
func TestStagedHeadersAreSealedInTheirPlace(t *testing.T) {
	t.Parallel()
	_, db := stagedStore(t)
	err := db.update(func(tx *transaction) error {
		document, err := tx.get(layout.Staged, []byte(stagedHeaders+"b1"))
		if err != nil {
			return err
		}
		return tx.put(layout.Headers, []byte("b1"), document)
	})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := db.Rules.Headers("b1"); err == nil {
		t.Errorf("read: %+v", h)
	}
}
