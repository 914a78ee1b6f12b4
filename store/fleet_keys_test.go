package store

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"boxgate/policy/name"
)

// TestFleetKeys: a host's copy of the keys of a fleet follows their records, keeps its own keys and the limits of keys that are gone, and
// leaves out records that could replace its own keys.
func TestFleetKeys(t *testing.T) {
	db := open(t, Options{Dir: newDir(t)})
	records := map[string][]byte{}
	ed := FleetKeys(func(edit func(map[string][]byte) error) error { return edit(records) })
	_, own, err := db.Keys.Create(APIKey{Name: "own", Role: "box-creator"})
	if err != nil {
		t.Fatal(err)
	}
	key, made, err := ed.Create(APIKey{Name: "ci", Role: "box-creator", Quotas: map[string]int64{"boxes": 3}})
	if err != nil || !made.Fleet || len(records) != 1 {
		t.Fatal(made, err)
	}
	if _, _, err := ed.Create(APIKey{Name: "ci", Role: "admin"}); !errors.Is(err, ErrKeyNameTaken) {
		t.Error(err)
	}
	apply := func(want ...string) {
		t.Helper()
		changed, unusable, err := db.Keys.SetFleet(records)
		if err != nil || unusable != 0 || !slices.Equal(changed, want) {
			t.Errorf("changed %v, unusable %d, %v", changed, unusable, err)
		}
	}
	apply(made.ID)
	found, ok := db.Keys.Find(key.Reveal())
	if !ok || !found.Fleet || found.Role != "box-creator" || found.ID != made.ID {
		t.Errorf("%+v, %v", found, ok)
	}
	db.Keys.NoteUse(found)
	if err := db.Keys.SaveUses(); err != nil {
		t.Fatal(err)
	}
	apply() // a use is this host's own
	next, _, err := ed.Replace(made.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	apply(made.ID)
	if db.Keys.Check(key.Reveal()) || !db.Keys.Check(next.Reveal()) {
		t.Error("the replaced key works, or the new one does not")
	}
	if err := db.KeySecrets.Create(KeySecret{Key: made.ID, Name: "token", Value: name.NewSecret("v"), Version: 1}); err != nil {
		t.Fatal(err)
	}
	if err := ed.Remove(made.ID); err != nil {
		t.Fatal(err)
	}
	apply(made.ID)
	if left, err := db.KeySecrets.All(); err != nil || len(left) != 0 {
		t.Errorf("%d secrets of the removed key are left, %v", len(left), err)
	}
	revoked, err := db.Keys.Revoked()
	if err != nil || len(revoked) != 1 || revoked[0].Quotas["boxes"] != 3 {
		t.Errorf("%v, %v", revoked, err)
	}
	all, err := db.Keys.All()
	if err != nil || !slices.ContainsFunc(all, func(k APIKey) bool { return k.ID == own.ID && !k.Fleet }) {
		t.Errorf("%v, %v", all, err)
	}
	testUnusableFleetKeys(t, db, own)
}

// testUnusableFleetKeys: whoever can write to etcd replaces no key of the host itself.
func testUnusableFleetKeys(t *testing.T, db *DB, own APIKey) {
	t.Helper()
	bad := keyRecords{}
	for _, k := range []APIKey{
		{ID: OperatorKey, Role: RoleAdmin, Hash: HashKey("1")}, {ID: own.ID, Role: RoleAdmin, Hash: HashKey("2"), Fleet: true}, {ID: "key_1", Role: RoleAdmin, Hash: own.Hash, Fleet: true},
		{ID: "key_2", Role: RoleAdmin, Hash: HashKey("3"), CreatedAt: time.Now()},
	} {
		if err := putKey(bad, k); err != nil {
			t.Fatal(err)
		}
	}
	bad["00"] = []byte("{")
	before, err := db.Keys.All()
	if err != nil {
		t.Fatal(err)
	}
	changed, unusable, err := db.Keys.SetFleet(maps.Clone(bad))
	after, errAfter := db.Keys.All()
	if len(changed) != 0 || unusable != len(bad) || err != nil || errAfter != nil || len(after) != len(before) {
		t.Errorf("changed %v, unusable %d of %d, %v; %d keys", changed, unusable, len(bad), err, len(after))
	}
}
