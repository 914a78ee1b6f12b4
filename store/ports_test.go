package store

import (
	"errors"
	"testing"
	"time"
)

// TestSharedPorts: shared ports are kept over a restart, count as one URL of their key, and are deleted with their box.
func TestSharedPorts(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db := open(t, Options{Dir: dir})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b11"})
	hash := HashKey("token")
	want := SharedPorts{Box: "b1", Token: &hash, Except: []uint16{22}, Host: "localhost:${PORT}", HTTPS: []uint16{8443}, Owner: "key_a", SharedAt: time.Now().UTC().Truncate(time.Second)}
	if err := db.URLs.SetPorts(want); err != nil {
		t.Fatal(err)
	}
	count := func(key string, urls int64) {
		t.Helper()
		have, err := db.Keys.Holdings(key)
		if err != nil || have.URLs != urls {
			t.Errorf("%s has %d URLs, %v", key, have.URLs, err)
		}
	}
	count("key_a", 1)
	want.Owner = "key_b"
	if err := errors.Join(db.URLs.SetPorts(want), db.URLs.SetPorts(SharedPorts{Box: "b11", Owner: "key_b"})); err != nil {
		t.Fatal(err)
	}
	count("key_a", 0)
	count("key_b", 2)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, Options{Dir: dir})
	got, err := db.URLs.Ports("b1")
	if err != nil || *got.Token != hash || got.Host != want.Host || got.Owner != "key_b" || !got.SharedAt.Equal(want.SharedAt) || len(got.Except) != 1 || len(got.HTTPS) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if r, err := db.Verify(); err != nil || len(r.Problems) > 0 {
		t.Errorf("%v %v", r.Problems, err)
	}
	count("key_b", 2)
	if err := db.Boxes.Delete("b1"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.URLs.Ports("b1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the ports of a deleted box: %v", err)
	}
	if _, err := db.URLs.Ports("b11"); err != nil {
		t.Error(err)
	}
	count("key_b", 1)
	if err := db.URLs.DeletePorts("b11"); err != nil {
		t.Error(err)
	}
	count("key_b", 0)
	if err := db.URLs.DeletePorts("b11"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := db.URLs.SetPorts(SharedPorts{Box: "none"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("the ports of a box that does not exist: %v", err)
	}
}
