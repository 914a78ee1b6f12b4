package store

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/llm"
	"boxgate/store/layout"
)

// TestLimitsOfRevokedKeys revokes keys of each sort. The limits of one with a box or a URL stay until both are gone, over restarts and in
// restored backups, which verify.
func TestLimitsOfRevokedKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := Options{Dir: newDir(t)}
		db := open(t, o)
		day := llm.Limit{USD: 5, Per: llm.PerDay}
		key := func(like APIKey) APIKey {
			t.Helper()
			_, made, err := db.Keys.Create(like)
			if err != nil {
				t.Fatal(err)
			}
			return made
		}
		revoke := func(k APIKey) {
			t.Helper()
			if err := db.Keys.Delete(k.ID); err != nil {
				t.Fatal(err)
			}
			requireVerified(t, db)
		}
		kept := func(want ...string) {
			t.Helper()
			all, err := db.Keys.Revoked()
			if err != nil || len(all) != len(want) {
				t.Fatalf("kept %+v, want %q, %v", all, want, err)
			}
			for i, k := range all {
				if k.ID != want[i] || k.Model != day || k.Quotas["certificates_per_hour"] != 3 {
					t.Errorf("kept %+v", k)
				}
			}
		}
		own := APIKey{Name: "own", Role: "box-creator", Model: day, Quotas: map[string]int64{"certificates_per_hour": 3}}
		limited := key(own)
		plain, admin := key(APIKey{Name: "plain", Role: "box-creator"}), key(APIKey{Name: "admin", Role: RoleAdmin, Model: day})
		box := allocate(t, db, Box{ID: "b1", CreatedBy: limited.ID})
		other := allocate(t, db, Box{ID: "b2"})
		if err := db.URLs.Set(URL{Box: other.ID, Port: 80, Owner: limited.ID, CreatedAt: time.Now()}, Claim{}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := db.Keys.Replace(limited.ID, time.Hour); err != nil { // two records of one key
			t.Fatal(err)
		}
		revoke(plain)
		revoke(admin)
		kept()
		revoke(limited)
		kept(limited.ID)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = open(t, o)
		kept(limited.ID)

		own.Name = "without a box"
		empty := key(own)
		revoke(empty)
		if all, _ := db.Keys.Revoked(); len(all) != 2 {
			t.Errorf("a request that still runs may make a box without limits: %+v", all)
		}
		forgotten := func() {
			t.Helper()
			time.Sleep(revokedGrace)
			revoke(key(APIKey{Name: "another"}))
		}
		forgotten()
		kept(limited.ID)
		if err := db.Boxes.Delete(box.ID); err != nil {
			t.Fatal(err)
		}
		forgotten()
		kept(limited.ID)
		if err := db.Boxes.Delete(other.ID); err != nil {
			t.Fatal(err)
		}
		forgotten()
		kept()
		if err := db.update(func(tx *transaction) error {
			return tx.putSealed(layout.Settings, revokedPrefix+"x", map[string]string{"limits": "?"})
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Keys.Revoked(); err == nil {
			t.Error("a damaged record was read as no limit")
		}
		last := key(APIKey{Name: "last"})
		if err := db.Keys.Delete(last.ID); err != nil {
			t.Errorf("a damaged record keeps a key from being revoked: %v", err)
		}
		if all, err := db.Keys.All(); err != nil || slices.ContainsFunc(all, func(k APIKey) bool { return k.ID == last.ID }) {
			t.Errorf("the key still works: %v", err)
		}
	})
}
