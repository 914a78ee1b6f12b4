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
		ID: "b1", Name: "demo", State: "running", Image: "debian", Runtime: "default", Size: "small", Labels: []string{"x"},
		KeepAlive: true, CreatedAt: time.Unix(1000, 0).UTC(), Attached: &Attached{Kind: "netns", Ref: "/run/netns/x"},
		Extra: json.RawMessage(`{"model":"m"}`), Env: map[string]name.Secret{"TOKEN": name.NewSecret("env-secret")},
		Secrets: map[string]name.Secret{"/github_token": name.NewSecret("hosted-secret")},
	})
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}}
	url := URL{Box: "b1", Port: 8000, Bearer: new(KeyHash), Username: "box", CreatedAt: time.Unix(2000, 0).UTC(), ExpiresAt: time.Unix(4000, 0).UTC(),
		Origins: []string{"https://example.org"}, Accounts: &Accounts{Emails: []string{"a@example.org"}, Groups: []string{"g"}}, SignedOut: []SignedOut{{"0123", time.Unix(3000, 0).UTC()}}, SignedOutBefore: time.Unix(2500, 0).UTC(), Key: name.NewSecret("url-secret")}
	ca := CA{CertPEM: []byte("cert"), KeyPEM: name.NewSecret("key-secret")}
	if err := errors.Join(
		db.Rules.StagePolicy("b1", Policy{Spec: spec, Version: 1}), db.Rules.CommitPolicy("b1"), db.Rules.SetHeaders("b1", rules(t, "api.example.com", "X-Key", "box-value"), 1),
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
		db.Rules.StagePolicy("b1", Policy{Spec: old, Version: 1}), db.Rules.CommitPolicy("b1"),
		db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{Mode: policy.ModeAllowAll}, Version: 2}), db.Rules.StagePolicy("b2", Policy{Spec: old, Version: 1}),
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
		db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 5}), db.Rules.AbortPolicy("b1"), db.Rules.AbortPolicy("b1"),
		db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 5}), db.Rules.CommitPolicy("b1"), db.Rules.SetHeaders("b1", nil, 2),
	); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"policy": db.Rules.StagePolicy("b1", Policy{Spec: policy.Spec{}, Version: 5}), "headers": db.Rules.SetHeaders("b1", nil, 2), "global headers": db.Rules.SetGlobalHeaders(nil, 0),
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
				err = errors.Join(err, db.Rules.StagePolicy(id, Policy{Spec: policy.Spec{}, Version: 1}), db.Rules.CommitPolicy(id), db.Rules.SetHeaders(id, nil, 1))
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
