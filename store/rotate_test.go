package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/rule/header"
	"boxgate/store/layout"
)

// sealingCase is one way of sealing a store, with the keys before and after a change.
type sealingCase struct {
	name     string
	old, new string // passphrases; "" for key files
	steps    []string
}

var sealingCases = []sealingCase{
	{"key file", "", "", []string{"both identities in the key file", "values sealed anew", "new data key committed", "new identity alone in the key file"}},
	{"passphrase", "correct horse", "battery staple", []string{"values sealed anew", "new data key committed"}},
}

// openWith opens a store with a passphrase, or its key file if that is empty.
func (c sealingCase) openWith(dir, passphrase string) (*DB, error) {
	env := "BOXGATE_TEST_ROTATION_" + strings.ToUpper(filepath.Base(filepath.Dir(dir)))
	if err := os.Setenv(env, passphrase); err != nil {
		return nil, err
	}
	return Open(Options{Dir: dir, PassphraseEnv: env})
}

const rotated = "Value-Of-A-Secret-77"

// filled makes a store with a value of every sealed kind.
func (c sealingCase) filled(t *testing.T) (dir string, db *DB) {
	t.Helper()
	dir = newDir(t)
	db, err := c.openWith(dir, c.old)
	if err != nil {
		t.Fatal(err)
	}
	s := name.NewSecret(rotated)
	allocate(t, db, Box{ID: "b1", Env: map[string]name.Secret{"A": s}, Secrets: map[string]name.Secret{"B": s}, Extra: json.RawMessage(`"` + rotated + `"`)})
	allocate(t, db, Box{ID: "b2"})
	if err := errors.Join(
		db.Rules.SetHeaders("b1", rules(t, "api.example.com", "X-Key", rotated), 1), db.Rules.SetGlobalHeaders(rules(t, "api.example.com", "X-Key", rotated), 1),
		db.Authorities.SetCA("b1", CA{CertPEM: []byte("cert"), KeyPEM: s}), db.Authorities.SetInstallationCA(CA{CertPEM: []byte("cert"), KeyPEM: s}),
		db.URLs.Set(URL{Box: "b1", Port: 80, Key: s}, Claim{}), db.URLs.Set(URL{Box: "b1", Port: 81}, Claim{}),
	); err != nil {
		t.Fatal(err)
	}
	return dir, db
}

// flaw returns the error of reading a filled store; "" if it is readable.
func flaw(db *DB) string {
	b, err := db.Boxes.Get("b1")
	if err != nil || b.Env["A"].Reveal() != rotated || b.Secrets["B"].Reveal() != rotated || string(b.Extra) != `"`+rotated+`"` {
		return fmt.Sprint("box: ", err)
	}
	if b, err = db.Boxes.Get("b2"); err != nil || len(b.Env) != 0 {
		return fmt.Sprint("second box: ", err)
	}
	for name, get := range map[string]func() (Headers, error){"rules": func() (Headers, error) { return db.Rules.Headers("b1") }, "global rules": db.Rules.GlobalHeaders} {
		h, err := get()
		if err != nil || len(h.Rules) != 1 || header.Of(h.Rules[0].Effects)[0].Literal.Reveal() != rotated {
			return fmt.Sprint(name, ": ", err)
		}
	}
	for name, get := range map[string]func() (CA, error){"CA": func() (CA, error) { return db.Authorities.CA("b1") }, "own CA": db.Authorities.InstallationCA} {
		ca, err := get()
		if err != nil || ca.KeyPEM.Reveal() != rotated || string(ca.CertPEM) != "cert" {
			return fmt.Sprint(name, ": ", err)
		}
	}
	if urls, err := db.URLs.List("b1"); err != nil || len(urls) != 2 || urls[0].Key.Reveal() != rotated || urls[1].Key.Reveal() != "" {
		return fmt.Sprint("URLs: ", err)
	}
	return ""
}

// snapshot copies the state directory as a power loss would leave it.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	to := newDir(t)
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o700); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.Chmod(filepath.Join(to, f.Name()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// Wherever a change of the key is cut short, the store opens with the present key and is complete.
func TestAChangeOfTheKeyMayStopAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range sealingCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, db := c.filled(t)
			var reached []string
			left := map[string]string{}
			db.onStep = func(step string) error {
				reached = append(reached, step)
				left[step] = snapshot(t, dir)
				return nil
			}
			if err := db.RotateKey(name.NewSecret(c.new)); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(reached, c.steps) {
				t.Errorf("the steps were %q", reached)
			}
			if f := flaw(db); f != "" {
				t.Errorf("after the change: %s", f)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			left["end"] = dir
			for step, dir := range left {
				c.opensOnce(t, step, dir, slices.Index(c.steps, step) < slices.Index(c.steps, "new data key committed") && step != "end")
			}
		})
	}
}

// opensOnce checks a state after an interruption: the store opens with its key file, or with exactly one of the
// passphrases; afterwards the key file has only one identity, and no other file is left.
func (c sealingCase) opensOnce(t *testing.T, step, dir string, before bool) {
	t.Helper()
	right, wrong := c.new, c.old
	if before {
		right, wrong = c.old, c.new
	}
	if c.old != "" {
		if db, err := c.openWith(dir, wrong); err == nil {
			t.Errorf("%s: opens with %q", step, wrong)
			_ = db.Close()
		}
	}
	for range len(c.steps) / 2 { // opening with a passphrase is slow, and needs no cleanup
		db, err := c.openWith(dir, right)
		if err != nil {
			t.Errorf("%s: %v", step, err)
			return
		}
		if f := flaw(db); f != "" {
			t.Errorf("%s: %s", step, f)
		}
		if err := errors.Join(db.Rules.SetHeaders("b2", rules(t, "x.example.com", "X", "1"), uint64(time.Now().UnixNano())), db.Close()); err != nil {
			t.Errorf("%s: %v", step, err)
		}
	}
	key, err := os.ReadFile(filepath.Join(dir, layout.FileSecret))
	if n := bytes.Count(key, []byte("AGE-SECRET-KEY-1")); c.old == "" && (err != nil || n != 1) {
		t.Errorf("%s: the key file holds %d identities (%v)", step, n, err)
	}
	files, err := os.ReadDir(dir)
	if want := 1 + bytes.Count(key, []byte("AGE-SECRET-KEY-1")); err != nil || len(files) != want {
		t.Errorf("%s: %v %v", step, files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %s: %v %v", step, f.Name(), info.Mode(), err)
		}
	}
}

// A change that fails at any step leaves a working store whose key can be changed again.
func TestAChangeOfTheKeyMayFailAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range sealingCases {
		for _, step := range c.steps {
			t.Run(c.name+", "+step, func(t *testing.T) {
				t.Parallel()
				dir, db := c.filled(t)
				failure := errors.New("injected")
				db.onStep = func(at string) error {
					if at == step {
						return failure
					}
					return nil
				}
				if err := db.RotateKey(name.NewSecret(c.new)); !errors.Is(err, failure) {
					t.Fatal(err)
				}
				if f := flaw(db); f != "" {
					t.Errorf("while it is open: %s", f)
				}
				if err := db.Rules.SetHeaders("b2", rules(t, "x.example.com", "X", "1"), 1); err != nil {
					t.Error(err)
				}
				db.onStep = nil
				if err := db.RotateKey(name.NewSecret(c.new)); err != nil {
					t.Fatal(err)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				c.opensOnce(t, step, dir, false)
			})
		}
	}
}

// After a change and the next start, neither the old key nor anything that it opens is useful.
func TestTheOldKeyOpensNothing(t *testing.T) {
	t.Parallel()
	for _, c := range sealingCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, db := c.filled(t)
			for i := range 40 { // many pages, so that later transactions do not overwrite them all
				filler := name.NewSecret(strings.Repeat("x", 4000))
				if _, err := db.Boxes.Allocate(Box{ID: policy.BoxID(fmt.Sprint("f", i)), Env: map[string]name.Secret{"A": filler}}, Pools{V6: pools.V6}); err != nil {
					t.Fatal(err)
				}
			}
			before := sealedBytes(t, db)
			oldKey, _ := os.ReadFile(filepath.Join(dir, layout.FileSecret)) // missing with a passphrase
			if err := errors.Join(db.RotateKey(name.NewSecret(c.new)), db.Close()); err != nil {
				t.Fatal(err)
			}
			db, err := c.openWith(dir, c.new)
			if err != nil {
				t.Fatal(err)
			}
			after := sealedBytes(t, db)
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(filepath.Join(dir, layout.FileDB))
			if err != nil {
				t.Fatal(err)
			}
			for name, old := range before {
				if bytes.Contains(file, old) || bytes.Equal(after[name], old) {
					t.Errorf("%s is still in the file as the old key opens it", name)
				}
				if !bytes.Contains(file, after[name]) {
					t.Errorf("%s is not in the file: the search finds nothing", name)
				}
			}
			if c.old == "" {
				if err := os.WriteFile(filepath.Join(dir, layout.FileSecret), oldKey, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if db, err := c.openWith(dir, c.old); err == nil {
				t.Error("the old key opens the store")
				_ = db.Close()
			}
		})
	}
}

// sealedBytes returns the sealed values of a store, and the encrypted data key.
func sealedBytes(t *testing.T, db *DB) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := db.bolt.View(func(tx *bolt.Tx) error {
		out["data key"] = bytes.Clone(tx.Bucket(layout.Meta).Get(layout.DataKey))
		for _, bucket := range [][]byte{layout.Secrets, layout.Headers} {
			err := tx.Bucket(bucket).ForEach(func(k, v []byte) error {
				out[fmt.Sprintf("%s of %s", bucket, k)] = bytes.Clone(v)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(out) < 5 {
		t.Fatal(len(out), err)
	}
	return out
}

// Concurrent reads and writes during a change of the key lose no data.
func TestTheKeyChangesUnderUse(t *testing.T) {
	t.Parallel()
	c := sealingCases[0]
	dir, db := c.filled(t)
	stop := make(chan struct{})
	var all sync.WaitGroup
	var last [4]int
	for i := range last {
		all.Go(func() {
			id := policy.BoxID(fmt.Sprintf("w%d", i))
			if _, err := db.Boxes.Allocate(Box{ID: id}, Pools{V6: pools.V6}); err != nil {
				t.Error(err)
				return
			}
			for n := 1; ; n++ {
				value := fmt.Sprint(n)
				if err := db.Rules.SetHeaders(id, rules(t, "a.example.com", "X", value), uint64(n)); err != nil {
					t.Error(err)
					return
				}
				got, err := db.Rules.Headers(id)
				if err != nil || header.Of(got.Rules[0].Effects)[0].Literal.Reveal() != value {
					t.Errorf("%s: %+v %v", id, got, err)
					return
				}
				last[i] = n
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 10 {
		if err := db.RotateKey(name.Secret{}); err != nil {
			t.Error(err)
		}
		if f := flaw(db); f != "" {
			t.Error(f)
		}
	}
	close(stop)
	all.Wait()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, Options{Dir: dir})
	for i, n := range last {
		got, err := db.Rules.Headers(policy.BoxID(fmt.Sprintf("w%d", i)))
		if err != nil || got.Version != uint64(n) || header.Of(got.Rules[0].Effects)[0].Literal.Reveal() != fmt.Sprint(n) {
			t.Errorf("w%d: %+v %v, want %d", i, got, err, n)
		}
	}
}

func TestAChangeOfTheKeyThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, c := range sealingCases {
		_, db := c.filled(t)
		wrong := name.NewSecret("x")
		if c.old != "" {
			wrong = name.Secret{}
		}
		if err := db.RotateKey(wrong); !errors.Is(err, ErrPassphrase) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
	dir, db := sealingCases[0].filled(t)
	if err := os.Remove(filepath.Join(dir, layout.FileSecret)); err != nil {
		t.Fatal(err)
	}
	if err := db.RotateKey(name.Secret{}); err == nil || flaw(db) != "" {
		t.Errorf("without its key file: %v, %s", err, flaw(db))
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// A process that waits for the store while its file is rewritten gets the new file, not a lock on the old one.
func TestWhoWaitsGetsTheNewFile(t *testing.T) {
	t.Parallel()
	dir, db := sealingCases[0].filled(t)
	path := filepath.Join(dir, layout.FileDB)
	if err := copyInUse(db.bolt, path+layout.NewSuffix); err != nil {
		t.Fatal(err)
	}
	type result struct {
		db  *bolt.DB
		err error
	}
	got := make(chan result, 1)
	go func() {
		b, err := openFile(path, time.Minute)
		got <- result{b, err}
	}()
	if err := errors.Join(os.Rename(path+layout.NewSuffix, path), db.Close()); err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	if err := r.db.Update(func(tx *bolt.Tx) error { return tx.Bucket(layout.Meta).Put([]byte("seen"), []byte("x")) }); err != nil {
		t.Fatal(err)
	}
	if err := r.db.Close(); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || !bytes.Contains(data, []byte("seenx")) {
		t.Errorf("what was written is not in the file (%v)", err)
	}
}
