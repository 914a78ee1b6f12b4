package store

import (
	"os"
	"regexp"
	"testing"
)

func TestHostIDStaysTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var first string
	for range 3 {
		db, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		id, err := db.Installation.HostID()
		if err != nil || !regexp.MustCompile(`^[0-9a-f]{6}$`).MatchString(id) || first != "" && id != first {
			t.Errorf("%q, then %q, %v", first, id, err)
		}
		first = id
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
