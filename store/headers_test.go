package store

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule/header"
	"boxgate/store/layout"
)

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
