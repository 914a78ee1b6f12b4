package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/layout"
)

// claim returns the claim of a key that has proven control of the names.
func claim(key string, hosts ...string) Claim {
	c := Claim{Key: key, Proofs: map[string]string{}}
	for _, host := range hosts {
		c.Proofs[host] = "dns"
	}
	return c
}

// freedAt changes when a name was freed.
func freedAt(t *testing.T, db *DB, host string, at time.Time) {
	t.Helper()
	err := db.update(func(tx *transaction) error {
		d, err := getDomain(tx, host)
		if err != nil {
			return err
		}
		d.Freed = at
		return putDomain(tx, host, d)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestFreedNamesAreKept checks that a name that a URL lost, by any kind of change, is reserved for its key for a week,
// even through a restart. That key can take it back without another proof, and an admin can take it immediately.
func TestFreedNamesAreKept(t *testing.T) {
	t.Parallel()
	const host = "app.example.org"
	for what, free := range map[string]func(*DB) error{
		"deleted":  func(db *DB) error { return db.URLs.Delete("b1", 80) },
		"replaced": func(db *DB) error { return db.URLs.Set(URL{Box: "b1", Port: 80}, claim("alice")) },
		"box":      func(db *DB) error { return db.Boxes.Delete("b1") },
	} {
		dir := newDir(t)
		db := open(t, Options{Dir: dir})
		allocate(t, db, Box{ID: "b1"})
		allocate(t, db, Box{ID: "b2"})
		take := func(by Claim) error { return db.URLs.Set(URL{Box: "b2", Port: 80, Hostnames: []string{host}}, by) }
		if err := errors.Join(db.URLs.Set(URL{Box: "b1", Port: 80, Hostnames: []string{host}}, claim("alice", host)), free(db), db.Close()); err != nil {
			t.Fatal(what, err)
		}
		db = open(t, Options{Dir: dir})
		before := time.Now()
		kept, refused := errors.AsType[*KeptDomainError](take(claim("mallory", host)))
		if !refused || kept.Until.Before(before.Add(reservationTime-time.Hour)) || kept.Until.After(time.Now().Add(reservationTime)) {
			t.Errorf("%s: another key takes it at once, or is told %+v", what, kept)
		}
		if err := db.URLs.Set(URL{Box: "b2", Port: 80, Pending: []string{host}}, claim("mallory")); err == nil {
			t.Errorf("%s: another key has it pending", what)
		}
		if err := take(claim("alice")); err != nil {
			t.Errorf("%s: its own key: %v", what, err)
		}
		if err := db.URLs.Delete("b2", 80); err != nil {
			t.Fatal(err)
		}
		freedAt(t, db, host, time.Now().Add(-reservationTime+time.Minute))
		if err := take(claim("mallory", host)); err == nil {
			t.Errorf("%s: another key takes it within a week", what)
		}
		admin := claim("root", host)
		admin.Admin = true
		if err := errors.Join(take(admin), db.URLs.Delete("b2", 80)); err != nil {
			t.Errorf("%s: an admin: %v", what, err)
		}
		freedAt(t, db, host, time.Now().Add(-reservationTime))
		if err := take(claim("mallory", host)); err != nil {
			t.Errorf("%s: another key after a week: %v", what, err)
		}
	}
}

// TestNamesNeedAProof checks that no name comes into service without a proof, not even one that a URL of the same key
// lost long ago; names that a URL already has stay, even if another key replaces the URL.
func TestNamesNeedAProof(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1", CreatedBy: "alice"})
	set := func(by Claim, hosts ...string) error {
		return db.URLs.Set(URL{Box: "b1", Port: 80, Hostnames: hosts}, by)
	}
	if err := set(claim("alice", "a.example.org"), "a.example.org", "b.example.org"); !errors.Is(err, ErrHostUnproven) {
		t.Errorf("a name beside one that is proven: %v", err)
	}
	if err := set(Claim{}, "a.example.org"); !errors.Is(err, ErrHostUnproven) {
		t.Errorf("nobody's claim: %v", err)
	}
	if err := errors.Join(set(claim("alice", "a.example.org"), "a.example.org"), set(claim("bob"), "a.example.org")); err != nil {
		t.Errorf("a URL made anew by another key of the box: %v", err)
	}
	if d, err := db.URLs.Domain("a.example.org"); err != nil || d.Key != "alice" || d.Proof != "dns" || !d.Freed.IsZero() {
		t.Errorf("%+v %v", d, err)
	}
	if err := db.URLs.Delete("b1", 80); err != nil {
		t.Fatal(err)
	}
	if d, err := db.URLs.Domain("a.example.org"); err != nil || d.Key != "alice" || d.Freed.IsZero() {
		t.Errorf("freed: %+v %v", d, err)
	}
}

// TestNamesOfOlderVersions checks that names belong to the key that created the box, or to the operator.
func TestNamesOfOlderVersions(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	for id, owner := range map[policy.BoxID]string{"b1": "alice", "b2": ""} {
		allocate(t, db, Box{ID: id, CreatedBy: owner})
		host := string(id) + ".example.org"
		err := db.update(func(tx *transaction) error { return putURL(tx, URL{Box: id, Port: 80, Hostnames: []string{host}}) })
		if err != nil {
			t.Fatal(err)
		}
		if err := db.URLs.Set(URL{Box: id, Port: 80, Hostnames: []string{host}}, claim("bob")); err != nil {
			t.Errorf("%s is made anew: %v", host, err)
		}
		if err := db.URLs.Delete(id, 80); err != nil {
			t.Fatal(err)
		}
		want := owner
		if want == "" {
			want = OperatorKey
		}
		if d, err := db.URLs.Domain(host); err != nil || d.Key != want || d.Proof != ProofEarlier {
			t.Errorf("%s: %+v %v", host, d, err)
		}
		if err := db.URLs.Set(URL{Box: id, Port: 80, Hostnames: []string{host}}, claim("mallory", host)); err == nil {
			t.Errorf("%s is another key's at once", host)
		}
		if err := db.URLs.Set(URL{Box: id, Port: 80, Hostnames: []string{host}}, claim(want)); err != nil {
			t.Errorf("%s, its own key: %v", host, err)
		}
	}
}

// TestFreedNamesAreBounded checks that a key that frees many names displaces only its own.
func TestFreedNamesAreBounded(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	give := func(key string, hosts ...string) {
		t.Helper()
		err := errors.Join(db.URLs.Set(URL{Box: "b1", Port: 80, Hostnames: hosts}, claim(key, hosts...)), db.URLs.Delete("b1", 80))
		if err != nil {
			t.Fatal(err)
		}
	}
	give("alice", "app.example.org")
	const round = 100
	for n := range 2*maxFreedPerKey/round + 1 {
		var hosts []string
		for i := range round {
			hosts = append(hosts, fmt.Sprintf("n%d-%d.example.net", n, i))
		}
		give("mallory", hosts...)
	}
	of := map[string]int{}
	err := db.view(func(tx *transaction) error {
		settings, err := tx.table(layout.Settings)
		if err != nil {
			return err
		}
		for _, key := range settings.Keys([]byte(domainPrefix)) {
			d, err := getDomain(tx, string(key[len(domainPrefix):]))
			if err != nil {
				return err
			}
			of[d.Key]++
		}
		return nil
	})
	if err != nil || of["alice"] != 1 || of["mallory"] != maxFreedPerKey {
		t.Errorf("remembered are %v, %v", of, err)
	}
}

// TestPendingNames checks that a pending name has no owner. The first key to prove it gets it, and it stays pending for
// the other URL.
func TestPendingNames(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	const host = "app.example.org"
	made := time.Now()
	for _, id := range []policy.BoxID{"b1", "b2"} {
		allocate(t, db, Box{ID: id})
		if err := db.URLs.Set(URL{Box: id, Port: 80, CreatedAt: made, Pending: []string{host}}, claim(string(id))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.URLs.ProveHost("b1", 80, made, host, claim("b1")); !errors.Is(err, ErrHostUnproven) {
		t.Errorf("without a proof: %v", err)
	}
	if _, err := db.URLs.ProveHost("b1", 80, made.Add(time.Second), host, claim("b1", host)); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a URL that was replaced: %v", err)
	}
	u, err := db.URLs.ProveHost("b1", 80, made, host, claim("b1", host))
	if err != nil || len(u.Pending) != 0 || len(u.Hostnames) != 1 {
		t.Errorf("%+v %v", u, err)
	}
	if _, err := db.URLs.ProveHost("b2", 80, made, host, claim("b2", host)); !errors.Is(err, ErrHostTaken) {
		t.Errorf("by another URL: %v", err)
	}
	if err := db.URLs.Delete("b1", 80); err != nil {
		t.Fatal(err)
	}
	_, err = db.URLs.ProveHost("b2", 80, made, host, claim("b2", host))
	if _, kept := errors.AsType[*KeptDomainError](err); !kept {
		t.Errorf("by another URL, as soon as it is free: %v", err)
	}
}

// TestDomainTokens checks that tokens are stable, also after a restart and under a new key of the store, and differ by
// key, name and gateway.
func TestDomainTokens(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db, other := open(t, Options{Dir: dir}), open(t, Options{Dir: newDir(t)})
	token := func(db *DB, key, host string) string {
		t.Helper()
		text, err := db.URLs.DomainToken(key, host)
		if err != nil || len(text) != 32 {
			t.Fatalf("%q %v", text, err)
		}
		return text
	}
	first := token(db, "alice", "app.example.org")
	for what, text := range map[string]string{
		"key": token(db, "bob", "app.example.org"), "name": token(db, "alice", "www.example.org"), "gateway": token(other, "alice", "app.example.org"),
	} {
		if text == first {
			t.Errorf("another %s has the same token", what)
		}
	}
	if err := errors.Join(db.RotateKey(name.Secret{}), db.Close()); err != nil {
		t.Fatal(err)
	}
	if token(open(t, Options{Dir: dir}), "alice", "app.example.org") != first {
		t.Error("the token has changed")
	}
}
