package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"boxgate/store/layout"
)

// TestAStoreThatIsGoneIsNoFirstStart checks that if there is any trace of an earlier gateway, a missing or empty store
// is refused, and no new one is created.
func TestAStoreThatIsGoneIsNoFirstStart(t *testing.T) {
	t.Parallel()
	gone := func(t *testing.T, o Options) {
		t.Helper()
		before, _ := os.ReadDir(o.Dir)
		db, err := Open(o)
		if err == nil {
			_ = db.Close()
		}
		if !errors.Is(err, ErrLost) {
			t.Errorf("the answer is %v", err)
		}
		if after, _ := os.ReadDir(o.Dir); len(after) != len(before) {
			t.Errorf("before there was %v, after %v", before, after)
		}
		assertRefused(t, o, "backup", "start over", o.Dir)
	}
	for name, damage := range map[string]func(path string) error{
		"missing": os.Remove, "empty": func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := fullStore(t)
			if err := damage(filepath.Join(dir, layout.FileDB)); err != nil {
				t.Fatal(err)
			}
			gone(t, Options{Dir: dir})
		})
	}
	for _, trace := range []string{layout.FileSecret, layout.FileAPIKey, layout.FileNextKey, "boxes/b1", "../run/netns/b1"} {
		t.Run(trace, func(t *testing.T) {
			dir := newDir(t)
			path := filepath.Join(dir, trace)
			if err := errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			gone(t, Options{Dir: dir, Traces: []string{filepath.Join(dir, "../run/netns/*")}})
		})
	}
}

// TestAFirstStartMayStopAnywhere checks that the next start creates the store, or continues with the existing one.
func TestAFirstStartMayStopAnywhere(t *testing.T) {
	errStop := errors.New("the gateway dies")
	for _, passphrase := range []string{"", "correct horse"} {
		for _, at := range []string{"first key written", "first store written", "first store in its place"} {
			dir := newDir(t)
			t.Setenv("BOXGATE_TEST_FIRST", passphrase)
			o := Options{Dir: dir, PassphraseEnv: "BOXGATE_TEST_FIRST", onStep: func(step string) error {
				if step == at {
					return errStop
				}
				return nil
			}}
			if _, err := Open(o); !errors.Is(err, errStop) {
				t.Fatalf("%q: %v", at, err)
			}
			t.Setenv("BOXGATE_TEST_FIRST", passphrase)
			o.onStep = nil
			db, err := Open(o)
			if err != nil {
				t.Fatalf("after %q: %v", at, err)
			}
			if made, err := db.Keys.Ensure(); err != nil || !made {
				t.Errorf("after %q: %v %v", at, made, err)
			}
			allocate(t, db, Box{ID: "b1"})
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			left, err := filepath.Glob(filepath.Join(dir, "*"+layout.NewSuffix))
			if err != nil || len(left) > 0 {
				t.Errorf("after %q: left are %v", at, left)
			}
			t.Setenv("BOXGATE_TEST_FIRST", passphrase)
			db = open(t, o)
			if b, err := db.Boxes.All(); err != nil || len(b) != 1 {
				t.Errorf("after %q: %v %v", at, b, err)
			}
		}
	}
}
