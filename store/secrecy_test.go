package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy/name"
	"boxgate/store/layout"
)

func TestTheFileHoldsNoSecret(t *testing.T) {
	t.Parallel()
	const secret = "Plaintext-Secret-0123456789"
	for label, passphrase := range map[string]string{"key file": "", "passphrase": "correct horse"} {
		t.Run(label, func(t *testing.T) {
			dir := newDir(t)
			env := "BOXGATE_TEST_PASSPHRASE_" + strings.ToUpper(strings.ReplaceAll(label, " ", "_"))
			if err := os.Setenv(env, passphrase); err != nil {
				t.Fatal(err)
			}
			db := open(t, Options{Dir: dir, PassphraseEnv: env})
			if v, ok := os.LookupEnv(env); ok {
				t.Errorf("the passphrase stays in the environment: %q", v)
			}
			s := name.NewSecret(secret)
			allocate(t, db, Box{ID: "b1", Env: map[string]name.Secret{"A": s}, Secrets: map[string]name.Secret{"B": s}, Extra: json.RawMessage(`"` + secret + `"`)})
			key := NewKey()
			if err := errors.Join(
				db.Rules.SetHeaders("b1", rules(t, "api.example.com", "X-Key", secret), 1), db.Rules.SetGlobalHeaders(rules(t, "api.example.com", "X-Key", secret), 1),
				db.Authorities.SetCA("b1", CA{KeyPEM: s}), db.Authorities.SetInstallationCA(CA{KeyPEM: s}), db.Keys.Add("k", key),
				db.URLs.Set(URL{Box: "b1", Port: 80, Key: s}, Claim{}), db.Environment.Change(setting("SHARED", secret)), db.Installation.Remember("s", s),
				db.Schedules.Add(Schedule{ID: "s1", Box: "b1", Command: []string{secret}, Prompt: secret, WebhookHeaders: map[string]string{"X-Key": secret}}, 1),
				db.Rules.SetHeaders("b1", nil, 2), // the replaced rules stay in free pages
			); err != nil {
				t.Fatal(err)
			}
			if got, err := db.Boxes.Get("b1"); err != nil || got.Env["A"].Reveal() != secret {
				t.Fatalf("the secret is not read back: %v", err)
			}
			data, err := os.ReadFile(filepath.Join(dir, layout.FileDB))
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
	dir := newDir(t)
	db := open(t, Options{Dir: dir})
	allocate(t, db, Box{ID: "b1"})
	allocate(t, db, Box{ID: "b2"})
	if err := db.Rules.SetHeaders("b1", rules(t, "api.example.com", "X-Key", "of b1"), 1); err != nil {
		t.Fatal(err)
	}
	err := db.bolt.Update(func(tx *bolt.Tx) error {
		headers := tx.Bucket(layout.Headers)
		return headers.Put([]byte("b2"), bytes.Clone(headers.Get([]byte("b1"))))
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := db.Rules.Headers("b2"); err == nil || len(got.Rules) != 0 {
		t.Errorf("b2 has the rules of b1: %+v", got)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	assertRefused(t, Options{Dir: dir}, "changed or moved", "backup")
}

func TestModes(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	db := open(t, Options{Dir: dir})
	if made, err := db.Keys.Ensure(); err != nil || !made {
		t.Fatal(made, err)
	}
	for name, want := range map[string]os.FileMode{"": 0o700, layout.FileDB: 0o600, layout.FileSecret: 0o600, layout.FileAPIKey: 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o755, layout.FileDB: 0o640, layout.FileSecret: 0o604} {
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

func TestWrongKeyIsRefused(t *testing.T) {
	t.Parallel()
	dir, other := newDir(t), newDir(t)
	for _, d := range []string{dir, other} {
		if err := open(t, Options{Dir: d}).Close(); err != nil {
			t.Fatal(err)
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, layout.FileSecret))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(other, layout.FileSecret), filepath.Join(dir, layout.FileSecret)); err != nil {
		t.Fatal(err)
	}
	assertRefused(t, Options{Dir: dir}, layout.FileSecret, "restore the right one")
	assertRefused(t, Options{Dir: other}, layout.FileSecret, "missing", "backup")
	if _, err := os.Stat(filepath.Join(other, layout.FileSecret)); err == nil {
		t.Error("a key that opens nothing was made")
	}
	if err := os.WriteFile(filepath.Join(dir, layout.FileSecret), key, 0o600); err != nil {
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
	if _, err := os.Stat(filepath.Join(o.Dir, layout.FileSecret)); err == nil {
		t.Error("a key file was made beside the passphrase")
	}
	t.Setenv(env, "wrong")
	assertRefused(t, o, "passphrase", env)
	t.Setenv(env, "")
	assertRefused(t, o, "passphrase", env)
	t.Setenv(env, "right")
	open(t, o)

	plain := Options{Dir: newDir(t), PassphraseEnv: env}
	if err := open(t, plain).Close(); err != nil { // the variable has been removed
		t.Fatal(err)
	}
	t.Setenv(env, "right")
	assertRefused(t, plain, "unset", env)
}

func TestAPIKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	o := Options{Dir: newDir(t)}
	db := open(t, o)
	if made, err := db.Keys.Ensure(); err != nil || !made {
		t.Fatal(made, err)
	}
	file := filepath.Join(o.Dir, layout.FileAPIKey)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(string(data))
	if !db.Keys.Check(key) || db.Keys.Check("") || db.Keys.Check(key+"x") || db.Keys.Check(key[1:]) {
		t.Error("the key in the file is not the only one that is known")
	}
	if err := errors.Join(os.Remove(file), db.Close()); err != nil {
		t.Fatal(err)
	}
	db = open(t, o)
	if made, err := db.Keys.Ensure(); err != nil || made {
		t.Errorf("a second key was made: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file was written again")
	}
	keys, err := db.Keys.All()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	if _, err := db.Keys.deleteWhere(func(k APIKey) bool { return k.Hash == keys[0].Hash }); err != nil || db.Keys.Check(key) {
		t.Errorf("the deleted key still opens (%v)", err)
	}
}
