package store

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"boxgate/policy"
	"boxgate/policy/name"
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
