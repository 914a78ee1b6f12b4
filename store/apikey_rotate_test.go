package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/store/layout"
)

// keyIn returns the API key in the file of a state directory.
func keyIn(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, layout.FileAPIKey))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func withKey(t *testing.T) (dir string, db *DB, key string) {
	t.Helper()
	dir = newDir(t)
	db = open(t, Options{Dir: dir})
	if made, err := db.Keys.Ensure(); err != nil || !made {
		t.Fatal(made, err)
	}
	return dir, db, keyIn(t, dir)
}

func TestAPIKeyRotation(t *testing.T) {
	t.Parallel()
	dir, db, old := withKey(t)
	if err := db.Keys.Rotate(0); err != nil {
		t.Fatal(err)
	}
	fresh := keyIn(t, dir)
	if fresh == old || !db.Keys.Check(fresh) || db.Keys.Check(old) {
		t.Error("the new key is not the only one that opens")
	}
	if info, err := os.Stat(filepath.Join(dir, layout.FileAPIKey)); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, layout.FileNextKey)); err == nil {
		t.Error("the file beside stays")
	}
	if keys, err := db.Keys.All(); err != nil || len(keys) != 1 {
		t.Error(keys, err)
	}
	if made, err := db.Keys.Ensure(); err != nil || made || keyIn(t, dir) != fresh {
		t.Error(made, err)
	}
}

func TestAPIKeyRotationWithGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, db, old := withKey(t)
		if err := db.Keys.Rotate(time.Hour); err != nil {
			t.Fatal(err)
		}
		second := keyIn(t, dir)
		time.Sleep(59 * time.Minute)
		if !db.Keys.Check(old) || !db.Keys.Check(second) {
			t.Error("within the grace a key does not open")
		}
		if err := db.Keys.Rotate(time.Hour); err != nil { // must not prolong the first
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if db.Keys.Check(old) || !db.Keys.Check(second) || !db.Keys.Check(keyIn(t, dir)) {
			t.Error("after its grace the first key opens, or another does not")
		}
		if err := db.Keys.Rotate(0); err != nil {
			t.Fatal(err)
		}
		if keys, err := db.Keys.All(); err != nil || len(keys) != 1 || db.Keys.Check(second) {
			t.Error("a rotation without grace leaves other keys", keys, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Wherever a rotation is cut short, after the next start exactly one key works, and it is in its file.
func TestAPIKeyRotationMayStopAnywhere(t *testing.T) {
	t.Parallel()
	dir, db, old := withKey(t)
	left := map[string]string{}
	var reached []string
	db.onStep = func(step string) error {
		reached = append(reached, step)
		left[step] = snapshot(t, dir)
		return nil
	}
	if err := db.Keys.Rotate(0); err != nil {
		t.Fatal(err)
	}
	if want := []string{"new API key in a file beside", "new API key in force", "new API key in its file"}; !slices.Equal(reached, want) {
		t.Errorf("the steps were %q", reached)
	}
	for step, dir := range left {
		db := open(t, Options{Dir: dir})
		if made, err := db.Keys.Ensure(); err != nil || made {
			t.Errorf("%s: %v %v", step, made, err)
		}
		key := keyIn(t, dir)
		if !db.Keys.Check(key) || (key == old) != (step == "new API key in a file beside") || key != old && db.Keys.Check(old) {
			t.Errorf("%s: the key in the file opens: %v; it is the old one: %v", step, db.Keys.Check(key), key == old)
		}
		if _, err := os.Stat(filepath.Join(dir, layout.FileNextKey)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file beside stays (%v)", step, err)
		}
	}
}
