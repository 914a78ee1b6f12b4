package certstore

import (
	"errors"
	"io/fs"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
)

const issue = "issue_cert_x"

// TestDeadHolder: the lock of a process that is gone ends with its lease, and what the process was storing is not there.
func TestDeadHolder(t *testing.T) {
	t.Parallel()
	server, _, b := started(t)
	dying := server.Client()
	a := open(t, dying)
	must(t, a.Lock(t.Context(), issue))
	must(t, a.Store(t.Context(), "certificates/issuer/x/x.key", []byte("key")))
	must(t, dying.Close())
	began := time.Now()
	must(t, b.Lock(t.Context(), issue))
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the lock of a dead holder ended after %v; its TTL is %v", took, b.TTL)
	}
	if b.Exists(t.Context(), "certificates/issuer/x/x.key") {
		t.Error("one file of a certificate was stored without the others")
	}
	must(t, certificate(t.Context(), b, "x", "new"))
	must(t, b.Unlock(t.Context(), issue))
}

// TestLateHolder: a holder whose lock has ended stores and deletes nothing, although its host has a lease.
func TestLateHolder(t *testing.T) {
	t.Parallel()
	server, a, b := started(t)
	must(t, a.Lock(t.Context(), issue))
	_, err := server.Client().Revoke(t.Context(), a.held[issue].session.Lease())
	must(t, err)
	must(t, b.Lock(t.Context(), issue))
	must(t, certificate(t.Context(), b, "x", "new"))
	if err := certificate(t.Context(), a, "x", "late"); !errors.Is(err, ErrFenced) {
		t.Errorf("a late holder stored a certificate: %v", err)
	}
	for _, ending := range setFiles { // as certmagic does after a failure; files that were not written are dropped
		for range 2 {
			_ = a.Delete(t.Context(), "certificates/issuer/x/x"+ending)
		}
		if text, err := b.Load(t.Context(), "certificates/issuer/x/x"+ending); err != nil || string(text) != "new"+ending {
			t.Errorf("%s after a late holder: %q, %v", ending, text, err)
		}
	}
	must(t, a.Unlock(t.Context(), issue))
	if ok, err := a.TryLock(t.Context(), issue); ok || err != nil {
		t.Errorf("the late holder released the lock of the other: %v, %v", ok, err)
	}
}

// TestFencedHost: a host without its lease takes no lock and changes nothing.
func TestFencedHost(t *testing.T) {
	t.Parallel()
	server, a, _ := started(t)
	must(t, a.Store(t.Context(), "x/one", []byte("old")))
	_, err := server.Client().Delete(t.Context(), presence)
	must(t, err)
	if err := a.Lock(t.Context(), issue); !errors.Is(err, ErrFenced) {
		t.Errorf("a lock: %v", err)
	}
	if ok, err := a.TryLock(t.Context(), issue); ok || !errors.Is(err, ErrFenced) {
		t.Errorf("a lock: %v", err)
	}
	if err := a.Store(t.Context(), "x/one", []byte("new")); !errors.Is(err, ErrFenced) {
		t.Errorf("a change: %v", err)
	}
	if err := a.Delete(t.Context(), "x/one"); !errors.Is(err, ErrFenced) {
		t.Errorf("a deletion: %v", err)
	}
	if text, err := a.Load(t.Context(), "x/one"); err != nil || string(text) != "old" {
		t.Errorf("%q, %v", text, err)
	}
	if leases, err := server.Client().Leases(t.Context()); err != nil || len(leases.Leases) > 0 {
		t.Errorf("%d leases remain, %v", len(leases.Leases), err)
	}
}

// TestWithoutEtcd: the cache has what this host has read, its files at one revision; locks and changes fail soon. The same holds when etcd
// has lost the fleet.
func TestWithoutEtcd(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(*etcdtest.Server){
		"killed": func(s *etcdtest.Server) { s.Kill() },
		"erased": func(s *etcdtest.Server) { s.Erase(); s.Restart() },
		"founded again": func(s *etcdtest.Server) {
			text, err := fleet.Encode(fleet.Founding{ID: "another"})
			must(t, err)
			_, err = s.Client().Put(t.Context(), keys.Founding(), text)
			must(t, err)
			_, err = s.Client().Delete(t.Context(), presence)
			must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, a, b := started(t)
			for _, text := range []string{"old", "new"} {
				must(t, a.Lock(t.Context(), issue))
				must(t, certificate(t.Context(), a, "x", text))
				must(t, a.Unlock(t.Context(), issue))
				_, err := b.Load(t.Context(), "certificates/issuer/x/x.crt") // only this file is asked for
				must(t, err)
			}
			cut(server)
			for _, s := range []*Store{a, b} {
				for _, ending := range setFiles {
					if text, err := s.Load(t.Context(), "certificates/issuer/x/x"+ending); err != nil || string(text) != "new"+ending {
						t.Errorf("%s: %q, %v", ending, text, err)
					}
				}
				if list, err := s.List(t.Context(), "certificates", true); err != nil || len(list) != 5 {
					t.Errorf("%v, %v", list, err)
				}
				if _, err := s.Load(t.Context(), "certificates/issuer/y/y.crt"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a certificate that this host has not read: %v", err)
				}
				began := time.Now()
				if err := s.Lock(t.Context(), issue); err == nil {
					t.Error("a lock without etcd")
				}
				if err := s.Store(t.Context(), "x", nil); err == nil {
					t.Error("a change without etcd")
				}
				if took := time.Since(began); took > time.Minute {
					t.Errorf("refused after %v", took)
				}
				if cached, refused := s.Counts(); cached < 5 || refused < 2 {
					t.Errorf("counted %d reads of the cache, %d refused", cached, refused)
				}
			}
		})
	}
}

// TestReadsEtcdAgain: after a time without it, etcd is asked again.
func TestReadsEtcdAgain(t *testing.T) {
	t.Parallel()
	server, a, b := started(t)
	server.Kill()
	if _, err := b.Load(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	server.Restart()
	etcdtest.Until(t, "a change is possible again", func() bool { return a.Store(t.Context(), "x", []byte("new")) == nil })
	etcdtest.Until(t, "the other host reads it", func() bool { _, err := b.Load(t.Context(), "x"); return err == nil })
}

// TestFull: the number of files is bounded; existing files may be replaced.
func TestFull(t *testing.T) {
	t.Parallel()
	server, a, _ := started(t)
	must(t, a.Store(t.Context(), "x", nil))
	c := server.Client()
	for n := 1; n < maxKeys; {
		var ops []clientv3.Op
		for ; n < maxKeys && len(ops) < 100; n++ {
			ops = append(ops, clientv3.OpPut(a.place("filled/")+string(rune(0x4e00+n%20000))+string(rune('a'+n/20000)), ""))
		}
		_, err := c.Txn(t.Context()).Then(ops...).Commit()
		must(t, err)
	}
	if err := a.Store(t.Context(), "y", nil); !errors.Is(err, ErrFull) {
		t.Errorf("one file too many: %v", err)
	}
	must(t, a.Store(t.Context(), "x", []byte("new")))
}
