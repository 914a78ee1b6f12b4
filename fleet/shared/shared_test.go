package shared

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/watch"
)

// keysOfTest are the keys of the fleet of the tests.
var keysOfTest = fleet.KeysOf("test")

// peer is a host with a lease.
type peer struct {
	table Table
	acks  Acknowledgements
	lease clientv3.LeaseID
}

// newPeer makes the presence of a host.
func newPeer(t *testing.T, client *clientv3.Client, id string) *peer {
	t.Helper()
	granted, err := client.Grant(t.Context(), 60)
	if err == nil {
		_, err = client.Put(t.Context(), keysOfTest.Presence(id), "{}", clientv3.WithLease(granted.ID))
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{lease: granted.ID}
	guard := func() clientv3.Cmp {
		return clientv3.Compare(clientv3.LeaseValue(keysOfTest.Presence(id)), "=", granted.ID)
	}
	p.table = Table{Client: client, Keys: keysOfTest, Host: id, Guard: guard}
	p.acks = Acknowledgements{Client: client, Keys: keysOfTest, Host: id, Guard: guard, Lease: func() clientv3.LeaseID { return granted.ID }}
	return p
}

func set(id, value string) func(map[string][]byte) error {
	return func(objects map[string][]byte) error { objects[id] = []byte(value); return nil }
}

// TestChanges: changes of several hosts at the same time are all made, one after the other; a change that has no effect writes nothing, and
// one of a host without its lease, or beyond a bound, is refused.
func TestChanges(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client()
	a, b := newPeer(t, client, "aaaaaa"), newPeer(t, client, "bbbbbb")
	var group sync.WaitGroup
	for i := range 10 {
		for _, p := range []*peer{a, b} {
			group.Go(func() {
				_, err := p.table.Change(t.Context(), APIKeys, func(objects map[string][]byte) error {
					objects["count"] = append(objects["count"][:len(objects["count"]):len(objects["count"])], 'x')
					objects[fmt.Sprint(p.table.Host, i)] = []byte("v")
					return nil
				})
				if err != nil && !errors.Is(err, ErrContended) {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	now, err := a.table.list(t.Context(), APIKeys)
	if err != nil || len(now["count"]) != len(now)-1 || len(now) < 2 {
		t.Errorf("%d of %d changes were counted, %v", len(now["count"]), len(now)-1, err)
	}
	if revision, err := a.table.Change(t.Context(), APIKeys, set("aaaaaa0", string(now["aaaaaa0"]))); len(now["aaaaaa0"]) > 0 && (revision != 0 || err != nil) {
		t.Errorf("no change: revision %d, %v", revision, err)
	}
	own := errors.New("own")
	if _, err := a.table.Change(t.Context(), APIKeys, func(map[string][]byte) error { return own }); !errors.Is(err, own) {
		t.Error(err)
	}
	if _, err := a.table.Change(t.Context(), APIKeys, set("large", strings.Repeat("x", MaxValue+1))); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if _, err := client.Revoke(t.Context(), b.lease); err != nil {
		t.Fatal(err)
	}
	if _, err := b.table.Change(t.Context(), APIKeys, set("late", "v")); !errors.Is(err, ErrFenced) {
		t.Errorf("a host without its lease: %v", err)
	}
}

// following is a mirror that follows etcd.
type following struct {
	*Mirror
	mu     sync.Mutex
	seen   map[string]string
	states int
	fail   error
}

func (f *following) apply(objects map[string][]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	f.seen, f.states = map[string]string{}, f.states+1
	for id, v := range objects {
		f.seen[id] = string(v)
	}
	return nil
}

func (f *following) is(want map[string]string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Equal(f.seen, want)
}

func (f *following) setFail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// follow starts a mirror of API keys for a host.
func follow(t *testing.T, p *peer) *following {
	t.Helper()
	f := &following{Mirror: newMirror(keysOfTest, []Kind{APIKeys}, zap.NewNop())}
	if f.Current() {
		t.Error("current before the first listing")
	}
	f.Attach(map[Kind]Apply{APIKeys: f.apply})
	follower, err := watch.New(watch.Config{Client: p.table.Client, Prefix: keysOfTest.Watched(), Apply: f.Follow, Log: zap.NewNop(), MaxKeys: 1000, MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	parts.Go(func() { follower.Run(ctx) })
	parts.Go(func() { f.Run(ctx, &p.acks) })
	t.Cleanup(func() { cancel(); parts.Wait() })
	etcdtest.Until(t, "the first listing", f.Current)
	return f
}

// TestInForceEverywhere: a change is answered when each host with a lease has it in force. A host that cannot apply it is not current and
// delays the answer until it can, or its lease has ended.
func TestInForceEverywhere(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client()
	a, b := newPeer(t, client, "aaaaaa"), newPeer(t, client, "bbbbbb")
	one, two := follow(t, a), follow(t, b)
	change := func(value string) int64 {
		t.Helper()
		revision, err := a.table.Change(t.Context(), APIKeys, set("k", value))
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	if err := one.AwaitAll(t.Context(), &a.acks, APIKeys, change("1")); err != nil || !two.is(map[string]string{"k": "1"}) {
		t.Errorf("answered, and the other host has %v, %v", two.seen, err)
	}
	two.setFail(errors.New("disk full"))
	revision := change("2")
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := one.AwaitAll(short, &a.acks, APIKeys, revision); !errors.Is(err, ErrBehind) || !strings.Contains(err.Error(), "bbbbbb") {
		t.Errorf("a host that has not applied it: %v", err)
	}
	etcdtest.Until(t, "the host that cannot apply is not current", func() bool { return !two.Current() })
	if _, pending := two.Counts(); pending != 1 {
		t.Errorf("%d kinds are pending", pending)
	}
	change("1")
	revision = change("2") // more changes while the first one is not applied
	two.setFail(nil)
	if err := one.AwaitAll(t.Context(), &a.acks, APIKeys, revision); err != nil || !two.Current() || !two.is(map[string]string{"k": "2"}) {
		t.Errorf("after the disk has room: %v", err)
	}
	two.setFail(errors.New("disk full"))
	revision = change("3")
	if _, err := client.Revoke(t.Context(), b.lease); err != nil {
		t.Fatal(err)
	}
	if err := one.AwaitAll(t.Context(), &a.acks, APIKeys, revision); err != nil {
		t.Errorf("the lease of the other host is gone: %v", err)
	}
}

// TestUnrelatedChangesAreNotAcknowledged: changes of the directory of hosts do not make each host write.
func TestUnrelatedChangesAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client()
	a := newPeer(t, client, "aaaaaa")
	one := follow(t, a)
	version := func() int64 {
		answer, err := client.Get(t.Context(), a.acks.prefix()+"aaaaaa")
		if err != nil || len(answer.Kvs) == 0 {
			return 0
		}
		return answer.Kvs[0].Version
	}
	etcdtest.Until(t, "the listing is acknowledged", func() bool { return version() > 0 })
	before := version()
	put, err := client.Put(t.Context(), keysOfTest.Host("cccccc"), "{}")
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Await(t.Context(), put.Header.Revision); err != nil {
		t.Fatal(err)
	}
	if err := one.AwaitAll(t.Context(), &a.acks, APIKeys, before); err != nil || version() != before {
		t.Errorf("version %d of the acknowledgement, before %d; %v", version(), before, err)
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.states != 1 {
		t.Errorf("API keys were applied %d times", one.states)
	}
}

// TestAcknowledgementsEndWithTheLease: a host that gives its lease up while it acknowledges leaves no acknowledgement behind. One would outlive
// it, also into a restored history of etcd with lower revisions.
func TestAcknowledgementsEndWithTheLease(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t).Client()
	a := newPeer(t, client, "aaaaaa")
	lease := a.acks.Lease
	a.acks.Lease = func() clientv3.LeaseID { return 0 }
	if err := a.acks.Put(t.Context(), 7); !errors.Is(err, ErrFenced) {
		t.Errorf("without a lease: %v", err)
	}
	a.acks.Lease = lease
	if err := a.acks.Put(t.Context(), 8); err != nil {
		t.Error(err)
	}
	if _, err := client.Revoke(t.Context(), a.lease); err != nil {
		t.Fatal(err)
	}
	if left, err := client.Get(t.Context(), a.acks.prefix(), clientv3.WithPrefix()); err != nil || len(left.Kvs) > 0 {
		t.Errorf("%v, %v", left.Kvs, err)
	}
}
