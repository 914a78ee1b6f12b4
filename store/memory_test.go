package store

import (
	"testing"

	"boxgate/policy/name"
)

// The state of a secret's source survives a restart and a new key.
func TestSourceMemory(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db := open(t, Options{Dir: dir})
	if got, err := db.Installation.Remembered("s"); err != nil || got.Reveal() != "" {
		t.Fatalf("%q, %v", got.Reveal(), err)
	}
	for _, text := range []string{"canary-old-refresh-token", "canary-new-refresh-token"} {
		if err := db.Installation.Remember("s", name.NewSecret(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.RotateKey(name.Secret{}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, Options{Dir: dir})
	if got, err := db.Installation.Remembered("s"); err != nil || got.Reveal() != "canary-new-refresh-token" {
		t.Errorf("%q, %v", got.Reveal(), err)
	}
	if got, err := db.Installation.Remembered("t"); err != nil || got.Reveal() != "" {
		t.Errorf("another secret has %q, %v", got.Reveal(), err)
	}
}
