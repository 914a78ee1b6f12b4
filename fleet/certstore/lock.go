package certstore

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"boxgate/fleet"
)

// TTL is how long a lock outlives its holder.
const TTL = 15 * time.Second

// held is a lock that this process holds, while its session lives.
type held struct {
	session  *concurrency.Session
	stop     context.CancelFunc // ends the keep-alives
	key      string
	revision int64 // of its creation: a later holder has another

	mu      sync.Mutex
	pending map[string][]byte // files of the certificate that is being stored
}

// isOwner is the condition that the lock has not ended.
func (h *held) isOwner() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.revision)
}

// add keeps a file of the certificate. With the last one it returns all.
func (h *held) add(key string, data []byte) (complete map[string][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending[key] = data
	set := map[string][]byte{}
	for at, data := range h.pending {
		if setOf(at) == setOf(key) {
			set[at] = data
		}
	}
	if len(set) < len(setFiles) {
		return nil
	}
	return set
}

// forget removes files that were written.
func (h *held) forget(files map[string][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.pending, func(key string, _ []byte) bool { _, ok := files[key]; return ok })
}

// drop removes a file that was not written; false: there is none.
func (h *held) drop(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.pending[key]
	delete(h.pending, key)
	return ok
}

func (s *Store) lockKey(name string) string {
	return s.Keys.Certificates(s.Founding) + "locks/" + url.PathEscape(name)
}

// Lock implements [certmagic.Locker]. It waits for the holder, in this or another process, or for the end of the holder's lease. Without etcd
// it fails.
func (s *Store) Lock(ctx context.Context, name string) error {
	for {
		if busy := s.reserve(name); busy != nil {
			select {
			case <-busy:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		for {
			ok, revision, err := s.take(ctx, name)
			if err == nil && !ok {
				err = s.awaitRelease(ctx, name, revision)
			}
			if err != nil {
				s.release(name)
				return err
			}
			if ok {
				return nil
			}
		}
	}
}

// TryLock implements [certmagic.TryLocker].
func (s *Store) TryLock(ctx context.Context, name string) (bool, error) {
	if s.reserve(name) != nil {
		return false, nil
	}
	ok, _, err := s.take(ctx, name)
	if !ok {
		s.release(name)
	}
	return ok, err
}

// Unlock implements [certmagic.Locker]. If etcd does not answer, the lock ends with its lease.
func (s *Store) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	h := s.held[name]
	delete(s.held, name)
	s.mu.Unlock()
	if h == nil {
		return fmt.Errorf("the lock %q is not held", name)
	}
	h.stop()
	s.revoke(h.session.Lease())
	s.release(name)
	return nil
}

// reserve makes a lock this caller's within the process, or returns a channel that is closed when the present one releases it.
func (s *Store) reserve(name string) (busy <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.busy[name]; ok {
		return c
	}
	s.busy[name] = make(chan struct{})
	return nil
}

func (s *Store) release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.busy[name])
	delete(s.busy, name)
}

// take takes a lock if it is free and this host has its lease. Otherwise revision is one at which another holder had it.
func (s *Store) take(ctx context.Context, name string) (ok bool, revision int64, err error) {
	call, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	key := s.lockKey(name)
	now, err := s.Client.Get(call, key)
	if err != nil {
		return false, 0, s.refuse(ctx, err)
	}
	if len(now.Kvs) > 0 {
		return false, now.Header.Revision, nil
	}
	granted, err := s.Client.Grant(call, int64(s.TTL/time.Second))
	if err != nil {
		return false, 0, s.refuse(ctx, err)
	}
	answer, err := s.Client.Txn(call).If(s.Guard(), clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "", clientv3.WithLease(granted.ID))).Else(clientv3.OpGet(key)).Commit()
	switch {
	case err != nil:
		s.revoke(granted.ID)
		return false, 0, s.refuse(ctx, err)
	case !answer.Succeeded:
		s.revoke(granted.ID)
		if len(answer.Responses[0].GetResponseRange().Kvs) == 0 {
			s.refused.Add(1)
			return false, 0, ErrFenced
		}
		return false, answer.Header.Revision, nil
	}
	life, stop := context.WithCancel(s.Client.Ctx())
	session, err := concurrency.NewSession(s.Client, concurrency.WithLease(granted.ID), concurrency.WithContext(life))
	if err != nil {
		stop()
		s.revoke(granted.ID)
		return false, 0, s.refuse(ctx, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[name] = &held{session: session, stop: stop, key: key, revision: answer.Header.Revision, pending: map[string][]byte{}}
	return true, 0, nil
}

func (s *Store) refuse(ctx context.Context, err error) error {
	s.refused.Add(1)
	return fleet.Unreachable(ctx, err)
}

// maxSpread spreads the hosts that wait for one lock.
const maxSpread = 100 * time.Millisecond

// awaitRelease waits until a lock is deleted after a revision, or the watch fails.
func (s *Store) awaitRelease(ctx context.Context, name string, revision int64) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	for answer := range s.Client.Watch(watching, s.lockKey(name), clientv3.WithRev(revision+1), clientv3.WithFilterPut()) {
		if answer.Err() != nil || len(answer.Events) > 0 {
			break
		}
	}
	select {
	case <-time.After(rand.N(maxSpread)):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// revoke ends a lease, if etcd answers soon; otherwise it ends after its TTL.
func (s *Store) revoke(lease clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	if _, err := s.Client.Revoke(ctx, lease); err != nil {
		s.Log.Debug("a lock ends with its lease", zap.Error(err))
	}
}
