package certstore

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/policy/name"
)

var keys = fleet.KeysOf("test")

const founding = "0123456789abcdef"

// presence is the key that the guard of these tests compares.
var presence = keys.Presence("a1b2c3")

// found writes the fleet and the presence of a host.
func found(t *testing.T, c *clientv3.Client) {
	t.Helper()
	text, err := fleet.Encode(fleet.Founding{ID: founding, Protocol: fleet.Protocol})
	for key, value := range map[string]string{keys.Founding(): text, presence: "present"} {
		if err == nil {
			_, err = c.Put(t.Context(), key, value)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// open returns the storage of a host with an empty cache.
func open(t *testing.T, c *clientv3.Client) *Store {
	t.Helper()
	s, err := New(Config{
		Client: c, Keys: keys, Founding: founding, Log: zap.NewNop(), TTL: 2 * time.Second, Cache: &certmagic.FileStorage{Path: t.TempDir()},
		Guard:     func() clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(presence), ">", 0) },
		Authority: func(context.Context) (name.Secret, error) { return name.NewSecret("the authority's key"), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// started returns the storages of two hosts of a fleet.
func started(t *testing.T) (server *etcdtest.Server, a, b *Store) {
	t.Helper()
	server = etcdtest.Start(t)
	found(t, server.Client())
	return server, open(t, server.Client()), open(t, server.Client())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// certificate stores a certificate as certmagic does.
func certificate(ctx context.Context, s *Store, subject, text string) error {
	for _, ending := range []string{".key", ".crt", ".json"} {
		if err := s.Store(ctx, "certificates/issuer/"+subject+"/"+subject+ending, []byte(text+ending)); err != nil {
			return err
		}
	}
	return nil
}

// TestStorage: what certmagic expects of a storage, with the answers of its own storage of files beside them.
func TestStorage(t *testing.T) {
	t.Parallel()
	_, shared, _ := started(t)
	for kind, s := range map[string]certmagic.Storage{"etcd": shared, "files": &certmagic.FileStorage{Path: t.TempDir()}} {
		ctx := t.Context()
		if _, err := s.Load(ctx, "a/none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: Load of a key that does not exist: %v", kind, err)
		}
		if _, err := s.Stat(ctx, "a/none"); !errors.Is(err, fs.ErrNotExist) || s.Exists(ctx, "a/none") {
			t.Errorf("%s: Stat of a key that does not exist: %v", kind, err)
		}
		if _, err := s.List(ctx, "a", true); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: List of a directory that does not exist: %v", kind, err)
		}
		must(t, s.Delete(ctx, "a/none"))
		for _, key := range []string{"a/b/one", "a/b/two", "a/three", "ab/four"} {
			must(t, s.Store(ctx, key, []byte("old")))
			must(t, s.Store(ctx, key, []byte(key)))
		}
		if text, err := s.Load(ctx, "a/b/two"); err != nil || string(text) != "a/b/two" {
			t.Errorf("%s: Load: %q, %v", kind, text, err)
		}
		if info, err := s.Stat(ctx, "a/three"); err != nil || !info.IsTerminal || info.Size != 7 || info.Key != "a/three" || time.Since(info.Modified).Abs() > time.Minute {
			t.Errorf("%s: Stat: %+v, %v", kind, info, err)
		}
		if info, err := s.Stat(ctx, "a/b"); err != nil || info.IsTerminal || !s.Exists(ctx, "a/b") {
			t.Errorf("%s: Stat of a directory: %+v, %v", kind, info, err)
		}
		for _, x := range []struct {
			path      string
			recursive bool
			want      string
		}{{"a", true, "a/b a/b/one a/b/two a/three"}, {"a", false, "a/b a/three"}, {"a/b", false, "a/b/one a/b/two"}} {
			list, err := s.List(ctx, x.path, x.recursive)
			slices.Sort(list)
			if got := strings.Join(list, " "); err != nil || got != x.want {
				t.Errorf("%s: List %+v: %s, %v", kind, x, got, err)
			}
		}
		must(t, s.Delete(ctx, "a"))
		if s.Exists(ctx, "a/b/one") || s.Exists(ctx, "a") || !s.Exists(ctx, "ab/four") {
			t.Errorf("%s: Delete of a directory removed too little or too much", kind)
		}
	}
}

// TestKeysStayInside: a key cannot leave the directory of the cache.
func TestKeysStayInside(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", ".", "..", "../x", "/x", "a/../x", "a//x", "a/", "a\\x", "a\x00x", strings.Repeat("x", maxKey+1)} {
		if check(key) == nil {
			t.Errorf("%q is accepted", key)
		}
	}
}

// TestSealed: etcd has no value in the clear, and a value that was moved to another key does not open.
func TestSealed(t *testing.T) {
	t.Parallel()
	server, a, b := started(t)
	c, secret := server.Client(), []byte("a private key")
	must(t, a.Store(t.Context(), "x/one", secret))
	all, err := c.Get(t.Context(), "\x00", clientv3.WithFromKey())
	must(t, err)
	for _, kv := range all.Kvs {
		if bytes.Contains(kv.Value, secret) {
			t.Errorf("%s has the value in the clear", kv.Key)
		}
		if string(kv.Key) == b.place("x/one") {
			_, err := c.Put(t.Context(), b.place("x/two"), string(kv.Value))
			must(t, err)
		}
	}
	if text, err := b.Load(t.Context(), "x/one"); err != nil || !bytes.Equal(text, secret) {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := b.Load(t.Context(), "x/two"); err == nil {
		t.Errorf("a value at another place opens: %q", text)
	}
}

// TestLocks: one holder at a time, in one process and in several.
func TestLocks(t *testing.T) {
	t.Parallel()
	_, a, b := started(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	holders, most, times := 0, 0, 0
	for range 5 {
		for _, s := range []*Store{a, b} {
			all.Go(func() {
				if err := s.Lock(t.Context(), "issue_cert_*.example.com"); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				holders++
				most, times = max(most, holders), times+1
				mu.Unlock()
				if ok, err := a.TryLock(t.Context(), "issue_cert_*.example.com"); ok || err != nil {
					t.Errorf("a held lock was taken: %v", err)
				}
				mu.Lock()
				holders--
				mu.Unlock()
				if err := s.Unlock(t.Context(), "issue_cert_*.example.com"); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if all.Wait(); most != 1 || times != 10 {
		t.Errorf("%d holders together; %d of 10 had the lock", most, times)
	}
	if err := a.Unlock(t.Context(), "issue_cert_*.example.com"); err == nil {
		t.Error("a lock that is not held was released")
	}
	must(t, a.Lock(t.Context(), "x"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.Lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a lock: %v", err)
	}
	must(t, a.Unlock(t.Context(), "x"))
	must(t, b.Lock(t.Context(), "x"))
}
