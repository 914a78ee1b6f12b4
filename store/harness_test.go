package store

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/history"
	"boxgate/store/layout"
)

var pools = Pools{
	V4: netip.MustParsePrefix("10.200.0.0/29"), V6: netip.MustParsePrefix("fd42:b0c5::/64"), Reserved: 4,
}

// open opens a store in dir until the test ends.
func open(t *testing.T, o Options) *DB {
	t.Helper()
	db, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// newDir returns a state directory that does not exist yet.
func newDir(t *testing.T) string { return filepath.Join(t.TempDir(), "state") }

func allocate(t *testing.T, db *DB, b Box) Box {
	t.Helper()
	b, err := db.Boxes.Allocate(b, pools)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func rules(t *testing.T, pattern, name, value string) []policy.HeaderRule {
	t.Helper()
	out, err := policy.ParseHeaders(map[string]map[string]string{pattern: {name: value}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var secrets = cmp.Comparer(func(a, b name.Secret) bool { return a.Reveal() == b.Reveal() })

// assertRefused fails unless opening fails with an error that contains the words.
func assertRefused(t *testing.T, o Options, words ...string) {
	t.Helper()
	db, err := Open(o)
	if err == nil {
		_ = db.Close()
		t.Errorf("the store was opened; want an error with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

// copyState copies the files of a state directory while its store is open.
func copyState(t *testing.T, dir string) string {
	t.Helper()
	to := newDir(t)
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{layout.FileDB, layout.FileSecret} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// contents lists the keys of every bucket.
func contents(t *testing.T, db *DB) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			return b.ForEach(func(k, _ []byte) error {
				out[string(name)] = append(out[string(name)], fmt.Sprintf("%q", k))
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// SetHeaders stages and commits header rules of a box.
func (db Rules) SetHeaders(id policy.BoxID, rules []policy.HeaderRule, version uint64) error {
	if err := db.StageHeaders(id, rules, version, history.Origin{}); err != nil {
		return err
	}
	return db.CommitHeaders(id)
}

// SetGlobalHeaders stages and commits header rules of every box.
func (db Rules) SetGlobalHeaders(rules []policy.HeaderRule, version uint64) error {
	if err := db.StageGlobalHeaders(rules, version, history.Origin{}); err != nil {
		return err
	}
	return db.CommitGlobalHeaders()
}
