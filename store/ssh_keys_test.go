package store

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestSSHKeys: a public key belongs to one API key, stays when that is replaced, and goes with it.
func TestSSHKeys(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	_, one, err := db.Keys.Create(APIKey{Name: "one", Role: RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	_, two, err := db.Keys.Create(APIKey{Name: "two", Role: RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	key := SSHKey{Key: []byte("wire"), Name: "ada", AddedAt: time.Now().UTC()}
	if k, err := db.Keys.AddSSHKey(one.ID, key); err != nil || len(k.SSHKeys) != 1 || k.SSHKeys[0].ID() != key.ID() {
		t.Fatal(k, err)
	}
	for _, id := range []string{one.ID, two.ID} {
		if _, err := db.Keys.AddSSHKey(id, key); !errors.Is(err, ErrSSHKeyTaken) {
			t.Errorf("a public key for the second time: %v", err)
		}
	}
	for _, id := range []string{OperatorKey, "key_none", ""} {
		if _, err := db.Keys.AddSSHKey(id, SSHKey{Key: []byte("other")}); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
	for i := range MaxSSHKeys {
		if _, err := db.Keys.AddSSHKey(two.ID, SSHKey{Key: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Keys.AddSSHKey(two.ID, SSHKey{Key: []byte("more")}); !errors.Is(err, ErrManySSHKeys) {
		t.Errorf("too many: %v", err)
	}
	if _, made, err := db.Keys.Replace(one.ID, time.Hour); err != nil || len(made.SSHKeys) != 1 {
		t.Errorf("replaced: %+v, %v", made, err)
	}
	if k, err := db.Keys.RemoveSSHKey(one.ID, key.ID()); err != nil || len(k.SSHKeys) != 0 {
		t.Errorf("removed: %+v, %v", k, err)
	}
	all, err := db.Keys.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range all {
		if k.ID == one.ID && len(k.SSHKeys) > 0 {
			t.Error("a replaced key still has a removed public key")
		}
	}
	if _, err := db.Keys.RemoveSSHKey(one.ID, key.ID()); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	if err := db.Keys.Delete(two.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Keys.AddSSHKey(one.ID, SSHKey{Key: []byte("0")}); err != nil {
		t.Errorf("a public key of a revoked API key: %v", err)
	}
}
