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
	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
)

var pools = Pools{
	V4: netip.MustParsePrefix("10.200.0.0/29"), V6: netip.MustParsePrefix("fd42:b0c5::/64"), Reserved: 4,
}

// open opens a store in dir until the test ends.
func open(t *testing.T, o Options) *DB {
	t.Helper()
	db, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// newDir is a state directory that does not exist yet.
func newDir(t *testing.T) string { return filepath.Join(t.TempDir(), "state") }

func allocate(t *testing.T, db *DB, b Box) Box {
	t.Helper()
	b, err := db.AllocateBox(b, pools)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func rules(t *testing.T, pattern, name, value string) []policy.HeaderRule {
	t.Helper()
	out, err := policy.ParseHeaders(map[string]map[string]string{pattern: {name: value}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var secrets = cmp.Comparer(func(a, b policy.Secret) bool { return a.Reveal() == b.Reveal() })

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
		Extra: json.RawMessage(`{"model":"m"}`), Env: map[string]policy.Secret{"TOKEN": policy.NewSecret("env-secret")},
		Secrets: map[string]policy.Secret{"/github_token": policy.NewSecret("hosted-secret")},
	})
	spec := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"api.example.com"}}
	url := URL{Box: "b1", Port: 8000, Bearer: new(KeyHash), Username: "box", CreatedAt: time.Unix(2000, 0).UTC()}
	ca := CA{CertPEM: []byte("cert"), KeyPEM: policy.NewSecret("key-secret")}
	if err := errors.Join(
		db.StagePolicy("b1", spec, 1), db.CommitPolicy("b1"), db.SetHeaders("b1", rules(t, "api.example.com", "X-Key", "box-value"), 1),
		db.SetGlobalHeaders(rules(t, "*.example.org:8443", "X-Key", "global-value"), 3), db.SetCA("b1", ca), db.SetInstallationCA(ca),
		db.SetURL(url), db.Close(),
	); err != nil {
		t.Fatal(err)
	}

	db = open(t, o)
	for _, read := range []func() (Box, error){
		func() (Box, error) { return db.Box("b1") },
		func() (Box, error) { return db.BoxByName("demo") },
		func() (Box, error) { all, err := db.Boxes(); return all[0], err },
	} {
		got, err := read()
		if diff := cmp.Diff(box, got, secrets, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("box: %v\n%s", err, diff)
		}
	}
	if got, err := db.Policy("b1"); err != nil || cmp.Diff(Policy{spec, 1}, got) != "" {
		t.Errorf("policy: %+v, %v", got, err)
	}
	if got, err := db.Headers("b1"); err != nil || got.Version != 1 || got.Rules[0].Pattern.String() != "api.example.com" || got.Rules[0].Headers[0].Value.Reveal() != "box-value" {
		t.Errorf("headers: %+v, %v", got, err)
	}
	if got, err := db.GlobalHeaders(); err != nil || got.Version != 3 || got.Rules[0].Pattern.Port() != 8443 || got.Rules[0].Headers[0].Value.Reveal() != "global-value" {
		t.Errorf("global headers: %+v, %v", got, err)
	}
	for _, read := range []func() (CA, error){func() (CA, error) { return db.CA("b1") }, db.InstallationCA} {
		if got, err := read(); err != nil || string(got.CertPEM) != "cert" || got.KeyPEM.Reveal() != "key-secret" {
			t.Errorf("CA: %+v, %v", got, err)
		}
	}
	if got, err := db.URLs(""); err != nil || cmp.Diff([]URL{url}, got) != "" {
		t.Errorf("URLs: %+v, %v", got, err)
	}
}

func TestTheFileHoldsNoSecret(t *testing.T) {
	t.Parallel()
	const secret = "Plaintext-Secret-0123456789"
	for name, passphrase := range map[string]string{"key file": "", "passphrase": "correct horse"} {
		t.Run(name, func(t *testing.T) {
			dir := newDir(t)
			env := "BOXGATE_TEST_PASSPHRASE_" + strings.ToUpper(strings.ReplaceAll(name, " ", "_"))
			if err := os.Setenv(env, passphrase); err != nil {
				t.Fatal(err)
			}
			db := open(t, Options{Dir: dir, PassphraseEnv: env})
			if v, ok := os.LookupEnv(env); ok {
				t.Errorf("the passphrase stays in the environment: %q", v)
			}
			s := policy.NewSecret(secret)
			allocate(t, db, Box{ID: "b1", Env: map[string]policy.Secret{"A": s}, Secrets: map[string]policy.Secret{"B": s}, Extra: json.RawMessage(`"` + secret + `"`)})
			key := NewKey()
			if err := errors.Join(
				db.SetHeaders("b1", rules(t, "api.example.com", "X-Key", secret), 1), db.SetGlobalHeaders(rules(t, "api.example.com", "X-Key", secret), 1),
				db.SetCA("b1", CA{KeyPEM: s}), db.SetInstallationCA(CA{KeyPEM: s}), db.AddAPIKey("k", key),
				db.SetHeaders("b1", nil, 2), // what is replaced stays in free pages
			); err != nil {
				t.Fatal(err)
			}
			if got, err := db.Box("b1"); err != nil || got.Env["A"].Reveal() != secret {
				t.Fatalf("the secret is not read back: %v", err)
			}
			data, err := os.ReadFile(filepath.Join(dir, fileDB))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{secret, key.Reveal(), "correct horse"} {
				if bytes.Contains(data, []byte(s)) {
					t.Errorf("the file holds %q", s)
				}
			}
		})
	}
}

func TestSecretsDoNotOpenElsewhere(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	if err := db.SetHeaders("b1", rules(t, "api.example.com", "X-Key", "of b1"), 1); err != nil {
		t.Fatal(err)
	}
	err := db.bolt.Update(func(tx *bolt.Tx) error {
		headers := tx.Bucket(bucketHeaders)
		return headers.Put([]byte("b2"), bytes.Clone(headers.Get([]byte("b1"))))
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := db.Headers("b2"); err == nil || len(got.Rules) != 0 {
		t.Errorf("b2 has the rules of b1: %+v", got)
	}
	if err := db.DeleteBox("b2"); err != nil {
		t.Errorf("a box whose secrets are damaged cannot be deleted: %v", err)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db := open(t, Options{Dir: dir})
	if made, err := db.EnsureAPIKey(); err != nil || !made {
		t.Fatal(made, err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, fileDB: 0o600, fileSecret: 0o600, fileAPIKey: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o755, fileDB: 0o640, fileSecret: 0o604} {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		assertRefused(t, Options{Dir: dir}, "chmod")
		if err := os.Chmod(path, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// assertRefused fails unless opening fails with an error that has the words.
func assertRefused(t *testing.T, o Options, words ...string) {
	t.Helper()
	db, err := Open(o)
	if err == nil {
		_ = db.Close()
		t.Errorf("the store was opened; want an error with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

func TestWrongKeyIsRefused(t *testing.T) {
	t.Parallel()
	dir, other := newDir(t), newDir(t)
	for _, d := range []string{dir, other} {
		if err := open(t, Options{Dir: d}).Close(); err != nil {
			t.Fatal(err)
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, fileSecret))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(other, fileSecret), filepath.Join(dir, fileSecret)); err != nil {
		t.Fatal(err)
	}
	assertRefused(t, Options{Dir: dir}, fileSecret, "put the right one back")
	assertRefused(t, Options{Dir: other}, fileSecret, "missing", "backup")
	if _, err := os.Stat(filepath.Join(other, fileSecret)); err == nil {
		t.Error("a key that opens nothing was made")
	}
	if err := os.WriteFile(filepath.Join(dir, fileSecret), key, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, Options{Dir: dir})
}

func TestWrongPassphraseIsRefused(t *testing.T) {
	const env = "BOXGATE_TEST_PASSPHRASE"
	o := Options{Dir: newDir(t), PassphraseEnv: env}
	t.Setenv(env, "right")
	if err := open(t, o).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(o.Dir, fileSecret)); err == nil {
		t.Error("a key file was made beside the passphrase")
	}
	t.Setenv(env, "wrong")
	assertRefused(t, o, "passphrase", env)
	t.Setenv(env, "")
	assertRefused(t, o, "passphrase", env)
	t.Setenv(env, "right")
	open(t, o)

	plain := Options{Dir: newDir(t), PassphraseEnv: env}
	if err := open(t, plain).Close(); err != nil { // the variable is gone by now
		t.Fatal(err)
	}
	t.Setenv(env, "right")
	assertRefused(t, plain, "unset", env)
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
	newer := binary.BigEndian.AppendUint32(nil, uint32(len(migrations)+1))
	err := db.bolt.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyVersion, newer) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(o.Dir, fileDB))
	if err != nil {
		t.Fatal(err)
	}
	assertRefused(t, o, "newer boxgate", "schema 2")
	if after, err := os.ReadFile(filepath.Join(o.Dir, fileDB)); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed (%v)", err)
	}
}

func TestNoStoreIsNoDatabase(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileDB), []byte(strings.Repeat("garbage", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	assertRefused(t, Options{Dir: dir}, "cannot be opened", fileDB)
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
		db.StagePolicy("b1", old, 1), db.CommitPolicy("b1"),
		db.StagePolicy("b1", policy.Spec{Mode: policy.ModeAllowAll}, 2), db.StagePolicy("b2", old, 1),
	); err != nil {
		t.Fatal(err)
	}
	crashed := Options{Dir: copyState(t, o.Dir)} // the disk as a kill -9 at this point leaves it
	db = open(t, crashed)
	if staged, err := db.Staged(); err != nil || len(staged) != 2 || staged["b1"].Version != 2 {
		t.Errorf("staged: %+v, %v", staged, err)
	}
	if dropped, err := db.DropStaged(); err != nil || len(dropped) != 2 {
		t.Errorf("dropped %v, %v", dropped, err)
	}
	if got, err := db.Policy("b1"); err != nil || got.Version != 1 || got.Spec.Mode != policy.ModeDenyAll {
		t.Errorf("b1 has %+v, %v; want the old policy", got, err)
	}
	if _, err := db.Policy("b2"); !errors.Is(err, ErrNotFound) {
		t.Errorf("b2: %v; want no policy", err)
	}
	if err := db.CommitPolicy("b1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("committing what was dropped: %v", err)
	}
}

// copyState copies the files of a state directory while its store is open.
func copyState(t *testing.T, dir string) string {
	t.Helper()
	to := newDir(t)
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{fileDB, fileSecret} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func TestVersionsOnlyGrow(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	if err := errors.Join(
		db.StagePolicy("b1", policy.Spec{}, 5), db.AbortPolicy("b1"), db.AbortPolicy("b1"),
		db.StagePolicy("b1", policy.Spec{}, 5), db.CommitPolicy("b1"), db.SetHeaders("b1", nil, 2),
	); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"policy": db.StagePolicy("b1", policy.Spec{}, 5), "headers": db.SetHeaders("b1", nil, 2), "global headers": db.SetGlobalHeaders(nil, 0),
	} {
		if !errors.Is(err, ErrConflict) {
			t.Errorf("%s with a version that is not higher: %v", what, err)
		}
	}
}

func TestNothingIsKeptOfABoxThatDoesNotExist(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	for what, err := range map[string]error{
		"policy": db.StagePolicy("b1", policy.Spec{}, 1), "headers": db.SetHeaders("b1", nil, 1), "CA": db.SetCA("b1", CA{}),
		"URL": db.SetURL(URL{Box: "b1", Port: 80}), "update": db.UpdateBox(Box{ID: "b1"}), "delete URL": db.DeleteURL("b1", 80),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := db.DeleteBox("b1"); err != nil {
		t.Errorf("deleting again: %v", err)
	}
	for _, id := range []policy.BoxID{"", "@", "A", "a/b", "a\x00", policy.BoxID(strings.Repeat("a", 33))} {
		if _, err := db.AllocateBox(Box{ID: id}, pools); err == nil {
			t.Errorf("%q was taken for an ID", id)
		}
	}
}

func TestAllocation(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	for i, want := range []string{"10.200.0.4 fd42:b0c5::4", "10.200.0.5 fd42:b0c5::5", "10.200.0.6 fd42:b0c5::6"} {
		b := allocate(t, db, Box{ID: policy.BoxID(fmt.Sprintf("b%d", i)), Name: fmt.Sprintf("name%d", i)})
		if got := b.V4.String() + " " + b.V6.String(); got != want || b.Index != uint32(i) {
			t.Errorf("box %d: %s, index %d", i, got, b.Index)
		}
	}
	if _, err := db.AllocateBox(Box{ID: "b9", Name: "name9"}, pools); !errors.Is(err, ErrExhausted) { // .7 is the broadcast address
		t.Errorf("the pool has no end: %v", err)
	}
	if _, err := db.BoxByName("name9"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a box that got no address left its name: %v", err)
	}
	if err := db.DeleteBox("b1"); err != nil {
		t.Fatal(err)
	}
	for box, want := range map[*Box]error{
		{ID: "b2"}: ErrConflict, {ID: "b3", Name: "name2"}: ErrNameTaken,
	} {
		if _, err := db.AllocateBox(*box, pools); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", box, err, want)
		}
	}
	if b := allocate(t, db, Box{ID: "b4", Name: "name1"}); b.Index != 1 || b.V4.String() != "10.200.0.5" {
		t.Errorf("the address of the deleted box was not given out again: %+v", b)
	}
}

func TestAllocationAvoidsAddressesOfOlderPools(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	moved := Pools{V4: netip.MustParsePrefix("10.200.0.0/24"), Reserved: 3, Max: 10} // b1 has .4, which is now the place of index 1
	got, err := db.AllocateBox(Box{ID: "b3"}, moved)
	if err != nil || got.V4.String() != "10.200.0.6" || got.V6.IsValid() {
		t.Errorf("%+v, %v", got, err)
	}
	limited := moved
	limited.Max = 4
	if _, err := db.AllocateBox(Box{ID: "b4"}, limited); !errors.Is(err, ErrExhausted) {
		t.Errorf("more boxes than Max: %v", err)
	}
}

func TestDeletingABoxDeletesEverythingOfIt(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	empty := contents(t, db)
	fill := func(id policy.BoxID) {
		allocate(t, db, Box{ID: id, Name: "name-" + string(id)})
		if err := errors.Join(
			db.StagePolicy(id, policy.Spec{}, 1), db.CommitPolicy(id), db.StagePolicy(id, policy.Spec{}, 2),
			db.SetHeaders(id, nil, 1), db.SetCA(id, CA{}), db.SetURL(URL{Box: id, Port: 80}), db.SetURL(URL{Box: id, Port: 81}),
		); err != nil {
			t.Fatal(err)
		}
	}
	fill("b1")
	one := contents(t, db)
	fill("b11") // whose ID begins with the other's
	if err := db.DeleteBox("b11"); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, db); cmp.Diff(one, got) != "" {
		t.Errorf("after deleting b11: %s", cmp.Diff(one, got))
	}
	fill("b11")
	if err := db.DeleteBox("b1"); err != nil {
		t.Fatal(err)
	}
	if urls, err := db.URLs("b11"); err != nil || len(urls) != 2 {
		t.Errorf("the URLs of another box: %v, %v", urls, err)
	}
	if err := db.DeleteBox("b11"); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, db); cmp.Diff(empty, got) != "" {
		t.Errorf("left: %s", cmp.Diff(empty, got))
	}
}

// contents lists the keys of every bucket.
func contents(t *testing.T, db *DB) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			return b.ForEach(func(k, _ []byte) error {
				out[string(name)] = append(out[string(name)], fmt.Sprintf("%q", k))
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUpdateBox(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	b := allocate(t, db, Box{ID: "b1", Name: "one", State: "creating"})
	allocate(t, db, Box{ID: "b2", Name: "two"})
	change := b
	change.State, change.Name, change.Index, change.V4 = "running", "uno", 77, netip.MustParseAddr("10.0.0.1")
	if err := db.UpdateBox(change); err != nil {
		t.Fatal(err)
	}
	got, err := db.BoxByName("uno")
	if err != nil || got.State != "running" || got.Index != b.Index || got.V4 != b.V4 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := db.BoxByName("one"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the old name: %v", err)
	}
	change.Name = "two"
	if err := db.UpdateBox(change); !errors.Is(err, ErrNameTaken) {
		t.Errorf("a name in use: %v", err)
	}
}

func TestURLs(t *testing.T) {
	t.Parallel()
	db := open(t, Options{Dir: newDir(t)})
	allocate(t, db, Box{ID: "b1"})
	token := NewKey()
	hash := HashKey(token.Reveal())
	for _, port := range []uint16{8000, 80} {
		if err := db.SetURL(URL{Box: "b1", Port: port, Bearer: &hash}); err != nil {
			t.Fatal(err)
		}
	}
	urls, err := db.URLs("b1")
	if err != nil || len(urls) != 2 || urls[0].Port != 80 {
		t.Fatalf("%+v, %v; want them by port", urls, err)
	}
	if !urls[0].Bearer.Matches(token.Reveal()) || urls[0].Bearer.Matches("wrong") || urls[0].Bearer.Matches("") || urls[0].Password != nil {
		t.Error("the hash does not tell the token from others")
	}
	if err := db.DeleteURL("b1", 80); err != nil {
		t.Fatal(err)
	}
	if _, err := db.URL("b1", 80); !errors.Is(err, ErrNotFound) {
		t.Errorf("the deleted URL: %v", err)
	}
	if u, err := db.URL("b1", 8000); err != nil || u.Port != 8000 {
		t.Errorf("the other URL: %+v, %v", u, err)
	}
}

func TestAPIKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	o := Options{Dir: newDir(t)}
	db := open(t, o)
	if made, err := db.EnsureAPIKey(); err != nil || !made {
		t.Fatal(made, err)
	}
	file := filepath.Join(o.Dir, fileAPIKey)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(string(data))
	if !db.CheckAPIKey(key) || db.CheckAPIKey("") || db.CheckAPIKey(key+"x") || db.CheckAPIKey(key[1:]) {
		t.Error("the key in the file is not the only one that is known")
	}
	if err := errors.Join(os.Remove(file), db.Close()); err != nil {
		t.Fatal(err)
	}
	db = open(t, o)
	if made, err := db.EnsureAPIKey(); err != nil || made {
		t.Errorf("a second key was made: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file was written again")
	}
	keys, err := db.APIKeys()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	if err := db.DeleteAPIKey(keys[0].Hash); err != nil || db.CheckAPIKey(key) {
		t.Errorf("the deleted key still opens (%v)", err)
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
				_, err := db.AllocateBox(Box{ID: id, Name: string(id)}, wide)
				err = errors.Join(err, db.StagePolicy(id, policy.Spec{}, 1), db.CommitPolicy(id), db.SetHeaders(id, nil, 1))
				if j%2 == 1 {
					err = errors.Join(err, db.DeleteBox(id))
				}
				if _, all := db.Boxes(); all != nil {
					err = errors.Join(err, all)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	boxes, err := db.Boxes()
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
