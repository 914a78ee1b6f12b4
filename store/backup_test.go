package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy/name"
	"boxgate/store/layout"
)

func backup(t *testing.T, db *DB) string {
	t.Helper()
	var b bytes.Buffer
	if n, err := db.Backup(&b); err != nil || n != int64(b.Len()) || n == 0 {
		t.Fatal(n, err)
	}
	path := filepath.Join(t.TempDir(), "backup")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBackupAndRestore checks that a restored store has the state of the backup, with the key file and without later
// changes, that no secret can be read in the backup, and that its API keys do not open the restored store.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	const canary = "sk-canary-backup"
	dir, db, operators := withKey(t)
	allocate(t, db, Box{ID: "b1", Name: "web", State: "creating", Env: map[string]name.Secret{"TOKEN": name.NewSecret(canary)}})
	ci, made, err := db.Keys.Create(APIKey{Name: "ci", Role: RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	from := backup(t, db)
	data, err := os.ReadFile(from)
	if err != nil || bytes.Contains(data, []byte(canary)) || bytes.Contains(data, []byte(operators)) {
		t.Error("the backup has a secret", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Error("a backup leaves", left)
	}
	if err := db.Keys.Delete(made.ID); err != nil {
		t.Fatal(err)
	}
	allocate(t, db, Box{ID: "b2", Name: "later", State: "creating"})

	if _, err := Restore(RestoreOptions{Dir: dir, From: from}); !errors.Is(err, ErrInUse) {
		t.Error("restored below a gateway that runs:", err)
	}
	if err := db.bolt.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := Restore(RestoreOptions{Dir: dir, From: from})
	if err != nil || len(r.Problems) > 0 || r.Documents == 0 {
		t.Fatal(r, err)
	}
	again := open(t, Options{Dir: dir})
	if made, err := again.Keys.Ensure(); err != nil || made {
		t.Error(made, err)
	}
	boxes, err := again.Boxes.All()
	if err != nil || len(boxes) != 1 || boxes[0].ID != "b1" || boxes[0].Env["TOKEN"].Reveal() != canary {
		t.Error(boxes, err)
	}
	if again.Keys.Check(ci.Reveal()) || again.Keys.Check(operators) || !again.Keys.Check(keyIn(t, dir)) {
		t.Error("a key of the backup opens, or that in the file does not")
	}
	if _, err := os.Stat(filepath.Join(dir, ReplacedFile)); err != nil {
		t.Error("what was replaced is gone:", err)
	}
}

// TestARestoreThatFailsChangesNothing tries a damaged backup, a backup of another key, and a missing one.
func TestARestoreThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	dir, db, key := withKey(t)
	good := backup(t, db)
	if err := db.bolt.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	_, other, _ := withKey(t)
	bad := filepath.Join(t.TempDir(), "bad")
	for name, content := range map[string][]byte{"damaged": bytes.ReplaceAll(data, []byte("first"), []byte("fIrst")), "short": data[:len(data)/2], "empty": nil, "text": []byte(strings.Repeat("no store ", 9000))} {
		if err := os.WriteFile(bad, content, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Restore(RestoreOptions{Dir: dir, From: bad})
		if err == nil && len(r.Problems) == 0 {
			t.Errorf("%s: restored", name)
		}
		if text := fmt.Sprint(err, r.Problems); strings.Contains(text, "-restore-") {
			t.Errorf("%s: the error names a directory that is gone: %s", name, text)
		}
	}
	for _, from := range []string{backup(t, other), filepath.Join(dir, "none")} {
		if r, err := Restore(RestoreOptions{Dir: dir, From: from}); err == nil && len(r.Problems) == 0 {
			t.Errorf("%s: restored", from)
		}
	}
	again := open(t, Options{Dir: dir})
	if !again.Keys.Check(key) || keyIn(t, dir) != key {
		t.Error("a failed restore has changed the store")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Error("a failed restore leaves", left)
	}
}

// TestRestoreNamesTheKeyFileThatIsMissing checks that the error has the path of the file, not of a copy.
func TestRestoreNamesTheKeyFileThatIsMissing(t *testing.T) {
	t.Parallel()
	dir, db, _ := withKey(t)
	from := backup(t, db)
	if err := db.bolt.Close(); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, layout.FileSecret)
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(RestoreOptions{Dir: dir, From: from}); err == nil || !strings.Contains(err.Error(), "the key file "+key+" is missing") {
		t.Error(err)
	}
}

// TestVerifySaysWhatCannotBeRead checks that Verify reports each unreadable document, and continues.
func TestVerifySaysWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	_, db, _ := withKey(t)
	if r, err := db.Verify(); err != nil || len(r.Problems) > 0 || r.Documents == 0 {
		t.Fatal(r, err)
	}
	err := db.update(func(tx *transaction) error {
		if err := tx.put(layout.Settings, []byte("not sealed"), []byte("text")); err != nil {
			return err
		}
		return tx.put(layout.APIKeys, []byte("elsewhere"), []byte(`{"name":"x"}`))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = db.bolt.Update(func(tx *bolt.Tx) error { // without its tag
		return tx.Bucket(layout.Usage).Put([]byte("b9"), bytes.Repeat([]byte("x"), 64))
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := db.Verify()
	text := strings.Join(r.Problems, "\n")
	if err != nil || !strings.Contains(text, "settings") || !strings.Contains(text, "api_keys") || !strings.Contains(text, "usage") || len(r.Problems) < 3 {
		t.Error(text, err)
	}
}
