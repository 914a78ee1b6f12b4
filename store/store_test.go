package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule/header"
	"boxgate/store/history"
	"boxgate/store/layout"
)

func TestEverythingIsReadBackAfterReopening(t *testing.T) {
	t.Parallel()
	o := Options{Dir: newDir(t)}
	db, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	box := allocate(t, db, Box{
		ID: "b1", Name: "demo", State: "running", Image: "debian", Runtime: "default", Size: "small", Labels: []string{"x"}, Metadata: map[string]string{"user": "42", "User": "x"},
		KeepAlive: true, CreatedAt: time.Unix(1000, 0).UTC(), Attached: &Attached{Kind: "netns", Ref: "/run/netns/x"},
		Extra: json.RawMessage(`{"model":"m"}`), Env: map[string]name.Secret{"TOKEN": name.NewSecret("env-secret")},
		Secrets: map[string]name.Secret{"/github_token": name.NewSecret("hosted-secret")},
	})
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}}
	url := URL{Box: "b1", Port: 8000, Bearer: new(KeyHash), Username: "box", CreatedAt: time.Unix(2000, 0).UTC(), ExpiresAt: time.Unix(4000, 0).UTC(),
		Origins: []string{"https://example.org"}, Accounts: &Accounts{Emails: []string{"a@example.org"}, Groups: []string{"g"}}, SignedOut: []SignedOut{{"0123", time.Unix(3000, 0).UTC()}}, SignedOutBefore: time.Unix(2500, 0).UTC(), Key: name.NewSecret("url-secret")}
	ca := CA{CertPEM: []byte("cert"), KeyPEM: name.NewSecret("key-secret")}
	if err := errors.Join(
		db.Rules.StagePolicy("b1", Policy{Spec: spec, Version: 1}, history.Origin{}), db.Rules.CommitPolicy("b1"), db.Rules.SetHeaders("b1", rules(t, "api.example.com", "X-Key", "box-value"), 1),
		db.Rules.SetGlobalHeaders(rules(t, "*.example.org:8443", "X-Key", "global-value"), 3), db.Authorities.SetCA("b1", ca), db.Authorities.SetInstallationCA(ca),
		db.URLs.Set(url, Claim{}), db.Close(),
	); err != nil {
		t.Fatal(err)
	}

	db = open(t, o)
	for _, read := range []func() (Box, error){
		func() (Box, error) { return db.Boxes.Get("b1") },
		func() (Box, error) { return db.Boxes.ByName("demo") },
		func() (Box, error) { all, err := db.Boxes.All(); return all[0], err },
	} {
		got, err := read()
		if diff := cmp.Diff(box, got, secrets, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("box: %v\n%s", err, diff)
		}
	}
	if got, err := db.Rules.Policy("b1"); err != nil || cmp.Diff(Policy{Spec: spec, Version: 1}, got, cmpopts.IgnoreUnexported(policy.Spec{})) != "" {
		t.Errorf("policy: %+v, %v", got, err)
	}
	if got, err := db.Rules.Headers("b1"); err != nil || got.Version != 1 || got.Rules[0].Pattern.String() != "api.example.com" || header.Of(got.Rules[0].Effects)[0].Literal.Reveal() != "box-value" {
		t.Errorf("headers: %+v, %v", got, err)
	}
	if got, err := db.Rules.GlobalHeaders(); err != nil || got.Version != 3 || got.Rules[0].Pattern.Port() != 8443 || header.Of(got.Rules[0].Effects)[0].Literal.Reveal() != "global-value" {
		t.Errorf("global headers: %+v, %v", got, err)
	}
	for _, read := range []func() (CA, error){func() (CA, error) { return db.Authorities.CA("b1") }, db.Authorities.InstallationCA} {
		if got, err := read(); err != nil || string(got.CertPEM) != "cert" || got.KeyPEM.Reveal() != "key-secret" {
			t.Errorf("CA: %+v, %v", got, err)
		}
	}
	if got, err := db.URLs.List(""); err != nil || cmp.Diff([]URL{url}, got, secrets) != "" {
		t.Errorf("URLs: %+v, %v", got, err)
	}
}

func TestSecondGatewayIsRefused(t *testing.T) {
	t.Parallel()
	o := Options{Dir: newDir(t), LockTimeout: 20 * time.Millisecond}
	open(t, o)
	assertRefused(t, o, "another gateway is using", o.Dir)
}

func TestNewerSchemaIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	o := Options{Dir: newDir(t)}
	db := open(t, o)
	newer := binary.BigEndian.AppendUint32(nil, layout.SchemaNow+1)
	err := db.bolt.Update(func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Put(layout.Version, newer) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(o.Dir, layout.FileDB))
	if err != nil {
		t.Fatal(err)
	}
	assertRefused(t, o, "newer boxgate", fmt.Sprintf("schema %d", layout.SchemaNow+1))
	if after, err := os.ReadFile(filepath.Join(o.Dir, layout.FileDB)); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed (%v)", err)
	}
}

func TestNoStoreIsNoDatabase(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, layout.FileDB), []byte(strings.Repeat("garbage", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	assertRefused(t, Options{Dir: dir}, "cannot be opened", layout.FileDB)
	assertRefused(t, Options{}, "state_dir")
}

func TestStagedPolicyIsDroppedAfterACrash(t *testing.T) {
	t.Parallel()
	o := Options{Dir: newDir(t)}
	db := open(t, o)
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	old := policy.Spec{Mode: policy.ModeDenyAll}
	if err := errors.Join(
		db.Rules.StagePolicy("b1", Policy{Spec: old, Version: 1}, history.Origin{}), db.Rules.CommitPolicy("b1"),
		db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{Mode: policy.ModeAllowAll}, Version: 2}, history.Origin{}), db.Rules.StagePolicy("b2", Policy{Spec: old, Version: 1}, history.Origin{}),
	); err != nil {
		t.Fatal(err)
	}
	crashed := Options{Dir: copyState(t, o.Dir)} // the disk after a kill -9 at this point
	db = open(t, crashed)
	if staged, err := db.Rules.Staged(); err != nil || len(staged) != 2 || staged["b1"].Version != 2 {
		t.Errorf("staged: %+v, %v", staged, err)
	}
	if dropped, err := db.Rules.DropStaged(); err != nil || len(dropped) != 2 {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	if got, err := db.Rules.Policy("b1"); err != nil || got.Version != 1 || got.Spec.Mode != policy.ModeDenyAll {
		t.Errorf("b1 has %+v, %v; want the old policy", got, err)
	}
	if _, err := db.Rules.Policy("b2"); !errors.Is(err, ErrNotFound) {
		t.Errorf("b2: %v; want no policy", err)
	}
	if err := db.Rules.CommitPolicy("b1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("committing what was dropped: %v", err)
	}
}

func TestVersionsOnlyGrow(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	if err := errors.Join(
		db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 4}, history.Origin{}), db.Rules.AbortPolicy("b1"), db.Rules.AbortPolicy("b1"),
		db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 5}, history.Origin{}), db.Rules.CommitPolicy("b1"),
		db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 7}, history.Origin{}), db.Rules.AbortPolicy("b1"), db.Rules.SetHeaders("b1", nil, 2),
	); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"policy": db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 5}, history.Origin{}), "one that was rolled back": db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 7}, history.Origin{}), "headers": db.Rules.SetHeaders("b1", nil, 2), "global headers": db.Rules.SetGlobalHeaders(nil, 0),
	} {
		if !errors.Is(err, ErrConflict) {
			t.Errorf("%s with a version that is not higher: %v", what, err)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	wide := Pools{V4: netip.MustParsePrefix("10.200.0.0/16"), V6: netip.MustParsePrefix("fd42:b0c5::/64"), Reserved: 16}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				id := policy.BoxID(fmt.Sprintf("b%dx%d", i, j))
				_, err := db.Boxes.Allocate(Box{ID: id, Name: string(id)}, wide)
				err = errors.Join(err, db.Rules.StagePolicy(id, Policy{Spec: policy.Spec{}, Version: 1}, history.Origin{}), db.Rules.CommitPolicy(id), db.Rules.SetHeaders(id, nil, 1))
				if j%2 == 1 {
					err = errors.Join(err, db.Boxes.Delete(id))
				}
				if _, all := db.Boxes.All(); all != nil {
					err = errors.Join(err, all)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	boxes, err := db.Boxes.All()
	if err != nil || len(boxes) != 24 {
		t.Fatalf("%d boxes, %v; want 24", len(boxes), err)
	}
	seen := map[netip.Addr]policy.BoxID{}
	for _, b := range boxes {
		for _, a := range []netip.Addr{b.V4, b.V6} {
			if other, taken := seen[a]; taken {
				t.Errorf("%s and %s both have %s", b.ID, other, a)
			}
			seen[a] = b.ID
		}
	}
}

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

// setting sets one variable.
func setting(label, value string) func(map[string]name.Secret) error {
	return func(vars map[string]name.Secret) error {
		vars[label] = name.NewSecret(value)
		return nil
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	if err := errors.Join(db.Environment.Change(setting("A", "1")), db.Environment.Change(setting("B", ""))); err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	err := db.Environment.Change(func(vars map[string]name.Secret) error {
		delete(vars, "A")
		return refused
	})
	if !errors.Is(err, refused) {
		t.Errorf("the error of the change is lost: %v", err)
	}
	vars, err := db.Environment.Variables()
	if b, ok := vars["B"]; err != nil || len(vars) != 2 || vars["A"].Reveal() != "1" || !ok || b.Reveal() != "" {
		t.Errorf("%d variables, %v", len(vars), err)
	}
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b11"})
	if err := errors.Join(
		db.Schedules.Add(Schedule{ID: "s2", Box: "b1"}, 2), db.Schedules.Add(Schedule{ID: "s1", Box: "b1"}, 2), db.Schedules.Add(Schedule{ID: "s1", Box: "b11"}, 2),
	); err != nil {
		t.Fatal(err)
	}
	if err := db.Schedules.Add(Schedule{ID: "s3", Box: "b1"}, 2); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more than there may be: %v", err)
	}
	if s, err := db.Schedules.Change("b1", "s1", func(s *Schedule) error { s.Cron, s.ID = "0 9 * * *", "other"; return nil }); err != nil || s.Cron != "0 9 * * *" || s.ID != "s1" {
		t.Errorf("%+v, %v", s, err)
	}
	if list, err := db.Schedules.List("b1"); err != nil || len(list) != 2 || list[0].ID != "s1" || list[0].Cron == "" || list[1].Cron != "" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := db.Schedules.Delete("b1", "s1"); err != nil {
		t.Error(err)
	}
	_, changed := db.Schedules.Change("b1", "s1", func(*Schedule) error { return nil })
	for _, err := range []error{changed, db.Schedules.Delete("b1", "s1")} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("a schedule that is gone: %v", err)
		}
	}
	if list, err := db.Schedules.List(""); err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestAStoreOfSchema2Grows checks that missing buckets are created, and that the content stays the same.
func TestAStoreOfSchema2Grows(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	allocate(t, db, Box{ID: "b1", Name: "one"})
	err = db.bolt.Update(func(tx *bolt.Tx) error {
		for _, name := range layout.Added {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
		}
		return db.seal.ChangeMeta(tx, func() error { return setSchema(tx, layout.SchemaTagged) })
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		db, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		b, err := db.Boxes.ByName("one")
		if err := errors.Join(err, db.Environment.Change(setting("A", "1")), db.Close()); err != nil || b.ID != "b1" {
			t.Fatalf("%+v, %v", b, err)
		}
	}
}

// TestARemovedBucketIsMissed checks that recreating a bucket does not hide that its documents are gone, and that a
// schema written without the key is refused.
func TestARemovedBucketIsMissed(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(tx *bolt.Tx) error{
		"bucket": func(tx *bolt.Tx) error { return tx.DeleteBucket(layout.Schedules) },
		"schema": func(tx *bolt.Tx) error {
			return tx.Bucket(layout.Meta).Put(layout.Version, binary.BigEndian.AppendUint32(nil, layout.SchemaTagged))
		},
	} {
		dir := fullStore(t)
		b, err := bolt.Open(filepath.Join(dir, layout.FileDB), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(b.Update(change), b.Close()); err != nil {
			t.Fatal(err)
		}
		if db, err := Open(Options{Dir: dir}); err == nil {
			t.Errorf("a store with another %s was opened", what)
			_ = db.Close()
		}
	}
}

func TestUsages(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	first := Usage{CPU: Count{Total: 7, Life: "1", Seen: 3}, PeakMemory: 9}
	if err := errors.Join(db.Usages.Save(map[policy.BoxID]Usage{"b1": {}, "b2": first, "gone": first}), db.Usages.Save(map[policy.BoxID]Usage{"b1": first})); err != nil {
		t.Fatal(err)
	}
	all, err := db.Usages.All()
	if err != nil || len(all) != 2 || all["b1"] != first || all["b2"] != first {
		t.Errorf("%+v, %v", all, err)
	}
	if err := db.Boxes.Delete("b1"); err != nil {
		t.Fatal(err)
	}
	if all, err := db.Usages.All(); err != nil || len(all) != 1 {
		t.Errorf("after a deletion: %+v, %v", all, err)
	}
}

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
