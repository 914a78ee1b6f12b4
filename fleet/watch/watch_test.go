package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
)

const prefix = "/w/"

// user applies changes as a user of a follower does: only by the changes it was given.
type user struct {
	mu      sync.Mutex
	state   map[string]string
	set     int // values that were set, and keys that were deleted
	changes []Change
}

func (u *user) apply(c Change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range c.Set {
		u.state[e.Key] = string(e.Value)
	}
	for _, key := range c.Deleted {
		delete(u.state, key)
	}
	u.set += len(c.Set) + len(c.Deleted)
	u.changes = append(u.changes, c)
}

func (u *user) is(want map[string]string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Equal(u.state, want)
}

func (u *user) steps() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.set
}

// follow starts a follower with a user.
func follow(t *testing.T, client *clientv3.Client, change func(*Config)) (*Follower, *user) {
	t.Helper()
	u := &user{state: map[string]string{}}
	c := Config{Client: client, Prefix: prefix, Apply: u.apply, Log: zap.NewNop(), MaxKeys: 5000, MaxBytes: 1 << 20, Check: 200 * time.Millisecond}
	if change != nil {
		change(&c)
	}
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return f, u
}

func put(t *testing.T, c *clientv3.Client, key, value string) int64 {
	t.Helper()
	answer, err := c.Put(t.Context(), key, value)
	if err != nil {
		t.Fatal(err)
	}
	return answer.Header.Revision
}

// TestFollowing: keys of before the start, changes, several changes of one transaction, and deletions. Keys outside of the prefix are
// not reported, and advance the revision all the same.
func TestFollowing(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	put(t, c, "/w/a", "1")
	put(t, c, "/v/z", "outside")
	put(t, c, "/w", "outside")
	f, u := follow(t, c, nil)
	etcdtest.Until(t, "the listing", func() bool { return u.is(map[string]string{"/w/a": "1"}) })
	put(t, c, "/w/b", "2")
	if _, err := c.Txn(t.Context()).Then(clientv3.OpPut("/w/c", "3"), clientv3.OpDelete("/w/a"), clientv3.OpPut("/w/d", "4")).Commit(); err != nil {
		t.Fatal(err)
	}
	etcdtest.Until(t, "the changes", func() bool { return u.is(map[string]string{"/w/b": "2", "/w/c": "3", "/w/d": "4"}) })
	for _, change := range u.changes {
		if !change.Listed && len(change.Set) == 2 && len(change.Deleted) != 1 {
			t.Errorf("a transaction was divided: %+v", change)
		}
	}
	last := put(t, c, "/v/z", "outside again")
	etcdtest.Until(t, "the revision follows changes outside", func() bool { return f.State().Revision >= last })
	if s := f.State(); s.Listings != 1 || s.Keys != 3 || u.steps() != 5 {
		t.Errorf("%+v, %d steps", s, u.steps())
	}
}

// TestFollowingBehindAProxy: etcd's gRPC proxy tells no progress, so the follower lists again to know that it is current. It misses nothing.
func TestFollowingBehindAProxy(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	at, _ := server.StartProxy()
	client, err := fleet.Dial(fleet.Access{Endpoints: []string{at}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	direct := server.Client()
	put(t, direct, "/w/a", "1")
	f, u := follow(t, client, nil)
	etcdtest.Until(t, "the listing", func() bool { return u.is(map[string]string{"/w/a": "1"}) })
	put(t, direct, "/w/b", "2")
	etcdtest.Until(t, "the change", func() bool { return u.is(map[string]string{"/w/a": "1", "/w/b": "2"}) })
	for range 3 {
		last := put(t, direct, "/v/z", "outside")
		f.Hurry()
		etcdtest.Until(t, "the follower is current", func() bool { return f.Current() && f.State().Revision >= last })
	}
	if u.steps() != 2 {
		t.Errorf("%d steps", u.steps())
	}
	t.Logf("%d listings", f.State().Listings)
}

// TestManyKeysAreListedAtOneRevision: a listing of several pages, while keys change.
func TestManyKeysAreListedAtOneRevision(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	want := map[string]string{}
	for from := 0; from < 3*page; from += 100 {
		var ops []clientv3.Op
		for i := from; i < from+100; i++ {
			key := fmt.Sprintf("/w/%05d", i)
			want[key] = "x"
			ops = append(ops, clientv3.OpPut(key, "x"))
		}
		if _, err := c.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	_, u := follow(t, c, nil)
	for i := range 50 {
		key := fmt.Sprintf("/w/%05d", i*7)
		want[key] = "y"
		put(t, c, key, "y")
	}
	etcdtest.Until(t, "every key in its last state", func() bool { return u.is(want) })
}

// TestStoppedServer: etcd is killed, and changed by others before the follower reaches it again. The watch goes on without a listing.
func TestStoppedServer(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := server.Client()
	put(t, c, "/w/a", "1")
	f, u := follow(t, c, func(c *Config) { c.Check = 30 * time.Second }) // connecting takes seconds, for which the watch is behind
	etcdtest.Until(t, "the listing", func() bool { return u.is(map[string]string{"/w/a": "1"}) })
	server.Kill()
	server.Restart()
	put(t, server.Client(), "/w/a", "2")
	etcdtest.Until(t, "the change", func() bool { return u.is(map[string]string{"/w/a": "2"}) })
	if s := f.State(); s.Listings != 1 {
		t.Errorf("%+v", s)
	}
}

// halt stops a follower, and returns a function that runs it again, as a host whose gateway hangs.
func halt(t *testing.T, f *Follower) (stop func(), resume func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop, func() {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
	}
}

func newFollower(t *testing.T, client *clientv3.Client, u *user) *Follower {
	t.Helper()
	f, err := New(Config{Client: client, Prefix: prefix, Apply: u.apply, Log: zap.NewNop(), MaxKeys: 10, MaxBytes: 1 << 10, Check: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestCompaction: revisions that a stopped follower has not seen are compacted. It lists, and reports the differences alone: changed, new
// and deleted keys, and no key that is as before.
func TestCompaction(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	for _, key := range []string{"same", "changed", "deleted", "again"} {
		put(t, c, "/w/"+key, "1")
	}
	u := &user{state: map[string]string{}}
	f := newFollower(t, c, u)
	stop, resume := halt(t, f)
	etcdtest.Until(t, "the listing", func() bool { return u.steps() == 4 })
	stop()
	put(t, c, "/w/changed", "2")
	put(t, c, "/w/new", "2")
	put(t, c, "/w/again", "2")
	put(t, c, "/w/again", "1")
	if _, err := c.Delete(t.Context(), "/w/deleted"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), put(t, c, "/v/z", "last"), clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	resume()
	etcdtest.Until(t, "the state after the compaction", func() bool {
		return u.is(map[string]string{"/w/same": "1", "/w/changed": "2", "/w/new": "2", "/w/again": "1"})
	})
	if s := f.State(); s.Listings != 2 || u.steps() != 4+3 {
		t.Errorf("%+v, %d steps", s, u.steps())
	}
	put(t, c, "/w/same", "3")
	etcdtest.Until(t, "changes after the listing", func() bool { return u.steps() == 8 })
}

// TestOtherHistory: etcd is erased under a running follower and filled again, as by a restored backup: with earlier revisions, with the
// same ones and with later ones.
func TestOtherHistory(t *testing.T) {
	t.Parallel()
	for name, writes := range map[string]int{"earlier": 1, "later": 30} {
		t.Run(name, func(t *testing.T) {
			server := etcdtest.Start(t)
			c := server.Client()
			for range 10 {
				put(t, c, "/w/a", "1")
			}
			put(t, c, "/w/b", "1")
			f, u := follow(t, c, nil)
			etcdtest.Until(t, "the listing", func() bool { return u.is(map[string]string{"/w/a": "1", "/w/b": "1"}) })
			for range 3 { // each start is a term
				server.Kill()
				server.Restart()
			}
			etcdtest.Until(t, "the follower knows the latest term", func() bool {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.history.term >= 4
			})
			server.Erase()
			server.Restart()
			other := server.Client()
			for range writes {
				put(t, other, "/w/c", "2")
			}
			etcdtest.Until(t, "the other history", func() bool { return u.is(map[string]string{"/w/c": "2"}) })
			if s := f.State(); s.Listings < 2 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestEventsInAnotherOrder: events that are older than the known state, or not in order, are a gap, and change nothing.
func TestEventsInAnotherOrder(t *testing.T) {
	t.Parallel()
	f := &Follower{Config: Config{MaxKeys: 10, MaxBytes: 1000}, known: map[string]Entry{}}
	f.state.Revision = 5
	event := func(key string, revision int64) *clientv3.Event {
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte("x"), ModRevision: revision}}
	}
	for name, events := range map[string][]*clientv3.Event{
		"known": {event("/w/a", 5)}, "older": {event("/w/a", 4)}, "backwards": {event("/w/a", 7), event("/w/b", 6)},
	} {
		if c, err := f.merge(events); !errors.Is(err, errGap) || len(f.known) > 0 {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	c, err := f.merge([]*clientv3.Event{event("/w/b", 6), event("/w/a", 6), event("/w/a", 8)})
	if err != nil || c.Revision != 8 || len(c.Set) != 2 || c.Set[0].Key != "/w/a" || c.Set[0].Revision != 8 || len(f.known) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestTooManyKeys: beyond the bound the follower keeps its last state, and goes on when the keys fit again.
func TestTooManyKeys(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t).Client()
	put(t, c, "/w/a", "1")
	f, u := follow(t, c, func(c *Config) { c.MaxKeys, c.MaxBytes = 3, 1000 })
	etcdtest.Until(t, "the listing", func() bool { return u.is(map[string]string{"/w/a": "1"}) })
	if _, err := c.Txn(t.Context()).Then(clientv3.OpPut("/w/b", "1"), clientv3.OpPut("/w/c", "1"), clientv3.OpPut("/w/d", "1")).Commit(); err != nil {
		t.Fatal(err)
	}
	put(t, c, "/w/a", strings.Repeat("x", 2000))
	stale := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return !f.complete
	}
	etcdtest.Until(t, "the follower gives up the watch", stale)
	if !u.is(map[string]string{"/w/a": "1"}) {
		t.Error("changes beyond the bound were reported")
	}
	if f.Current() {
		t.Error("current, although changes are known to be missing")
	}
	if _, err := c.Delete(t.Context(), "/w/d"); err != nil {
		t.Fatal(err)
	}
	put(t, c, "/w/a", "2")
	etcdtest.Until(t, "the keys that fit", func() bool { return u.is(map[string]string{"/w/a": "2", "/w/b": "1", "/w/c": "1"}) })
	etcdtest.Until(t, "the follower is current", f.Current)
}

// TestNoAnswerForLong: a follower that has not been able to compare itself with etcd for several intervals is not current until it has.
func TestNoAnswerForLong(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	link := etcdtest.NewLink(t, server.Endpoint())
	client, err := fleet.Dial(fleet.Access{Endpoints: []string{link.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	f, u := follow(t, client, nil)
	etcdtest.Until(t, "the listing", func() bool { return f.State().Revision > 0 && f.Current() })
	link.Cut()
	etcdtest.Until(t, "the follower is not current", func() bool { return !f.Current() })
	put(t, server.Client(), "/w/a", "1")
	link.Heal()
	etcdtest.Until(t, "the follower is current", f.Current)
	if !u.is(map[string]string{"/w/a": "1"}) {
		t.Error("current without the change")
	}
}
