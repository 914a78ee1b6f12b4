package sharedkey

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
	"boxgate/fleet/pki"
	"boxgate/fleet/roster"
	"boxgate/fleet/watch"
	"boxgate/internal/nightly"
	"boxgate/policy/name"
)

// world is a fleet.
type world struct {
	t      *testing.T
	roster roster.Roster
	keys   fleet.Keys
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t, roster.Roster{Client: etcdtest.Start(t).Client(), Name: "test"}, fleet.KeysOf("test")}
}

func machine(id string) roster.Machine {
	return roster.Machine{ID: id, Name: id, Keep: func(fleet.Identity) error { return nil }}
}

// join makes a host a member, with a token of another or as the first.
func (w *world) join(id string, by *member) *member {
	w.t.Helper()
	var identity fleet.Identity
	var err error
	if by == nil {
		identity, err = w.roster.Init(w.t.Context(), machine(id))
	} else {
		text, errToken := w.roster.Token(w.t.Context(), by.Identity)
		if errToken != nil {
			w.t.Fatal(errToken)
		}
		token, errParse := pki.ParseToken(text.Reveal())
		if errParse != nil {
			w.t.Fatal(errParse)
		}
		identity, err = w.roster.Join(w.t.Context(), machine(id), token)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return w.start(identity)
}

// member is a host with a lease.
type member struct {
	*Ring
	lease    clientv3.LeaseID
	obtained chan struct{}
}

func (w *world) start(identity fleet.Identity) *member {
	w.t.Helper()
	client := w.roster.Client
	lease, err := client.Grant(w.t.Context(), 600)
	if err == nil {
		_, err = client.Put(w.t.Context(), w.keys.Presence(identity.Host), "{}", clientv3.WithLease(lease.ID))
	}
	if err != nil {
		w.t.Fatal(err)
	}
	m := &member{lease: lease.ID, obtained: make(chan struct{}, 10)}
	m.Ring, err = New(Config{
		Client: client, Keys: w.keys, Identity: identity, Hosts: func() int { return 2 }, Log: zap.NewNop(), Lease: func() clientv3.LeaseID { return lease.ID },
		Guard: func() clientv3.Cmp {
			return clientv3.Compare(clientv3.LeaseValue(w.keys.Presence(identity.Host)), "=", lease.ID)
		},
		Obtained:     func() { m.obtained <- struct{}{} },
		AuthorityKey: func(ctx context.Context) (name.Secret, error) { return w.roster.AuthorityKey(ctx, identity) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// run has a member follow etcd, ask and answer.
func (w *world) run(m *member) {
	w.t.Helper()
	follower, err := watch.New(watch.Config{Client: m.Client, Prefix: w.keys.Watched(), Apply: m.Follow, Log: zap.NewNop(), MaxKeys: 1000, MaxBytes: 1 << 20})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var parts sync.WaitGroup
	parts.Go(func() { follower.Run(ctx) })
	parts.Go(func() { m.Run(ctx) })
	w.t.Cleanup(func() { cancel(); parts.Wait() })
}

// use makes a change with the key that Prepare returns, and returns its ID. made is false if the conditions were not met.
func (w *world) use(p Prepared) (made bool) {
	w.t.Helper()
	answer, err := w.roster.Client.Txn(w.t.Context()).If(p.If...).Then(append(p.Then, clientv3.OpPut("secret", p.ID))...).Commit()
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.Succeeded
}

func (w *world) prepare(m *member) Prepared {
	w.t.Helper()
	p, err := m.Prepare(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// has reports whether a host gets a key from etcd alone, and not from its memory.
func (w *world) has(m *member, p Prepared) bool {
	w.t.Helper()
	fresh, err := New(m.Config)
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := fresh.Get(w.t.Context(), p.ID)
	if err != nil && !errors.Is(err, ErrNoKey) && !errors.Is(err, roster.ErrNotMember) {
		w.t.Fatal(err)
	}
	return err == nil && key.Equal(p.Key)
}

// TestKeyChangesAfterAHostLeft: the key stays while no host leaves. After one has left, the next change has another key, which that host does
// not get; a change that was prepared before is refused.
func TestKeyChangesAfterAHostLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.join("aaaaaa", nil)
	b, c := w.join("bbbbbb", a), w.join("cccccc", a)
	first := w.prepare(a)
	if !w.use(first) || !w.has(a, first) || !w.has(b, first) || !w.has(c, first) {
		t.Fatal("a member does not have the first key")
	}
	if again := w.prepare(b); again.ID != first.ID || !again.Key.Equal(first.Key) || !w.use(again) {
		t.Errorf("another key without a host that left")
	}
	early := w.prepare(b)
	if err := w.roster.Leave(t.Context(), "cccccc"); err != nil {
		t.Fatal(err)
	}
	if w.use(early) {
		t.Error("a change with the key that a host knew, after it had left")
	}
	next := w.prepare(b)
	if next.ID == first.ID || next.Key.Equal(first.Key) || !w.use(next) || !w.has(a, next) || !w.has(b, next) {
		t.Errorf("the key after a host left: %s, before %s", next.ID, first.ID)
	}
	if w.has(c, next) {
		t.Error("a host that left has the next key")
	}
	if _, err := c.Prepare(t.Context()); err == nil {
		t.Error("a host that left makes a key")
	}
	text, _, err := fleet.Get(t.Context(), w.roster.Client, w.keys.Wrap("aaaaaa"))
	if wrap, errDecode := fleet.Decode[fleet.Wrap](text); err != nil || errDecode != nil || len(wrap.Shared) > 2 || strings.Contains(string(text), first.Key.Reveal()) {
		t.Errorf("the record keeps %d keys: %v, %v", len(wrap.Shared), err, errDecode)
	}
	if _, err := w.roster.Client.Revoke(t.Context(), b.lease); err != nil {
		t.Fatal(err)
	}
	if err := w.roster.LeaveStopped(t.Context(), b.Identity); err != nil {
		t.Fatal(err)
	}
	if third := w.prepare(a); third.ID == next.ID || !w.use(third) || w.has(b, third) {
		t.Error("a host that left with its gateway stopped has the next key")
	}
}

// TestTwoHostsMakeKeys: of hosts that make a key at the same time, the changes of one come into use, and then every member has its key.
func TestTwoHostsMakeKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.join("aaaaaa", nil)
	b := w.join("bbbbbb", a)
	for i := range 5 {
		var group sync.WaitGroup
		made := make(chan Prepared, 2)
		for _, m := range []*member{a, b} {
			group.Go(func() {
				for range 50 {
					p, err := m.Prepare(t.Context())
					if err != nil && !errors.Is(err, ErrContended) {
						t.Error(err)
						return
					}
					if err == nil && w.use(p) {
						made <- p
						return
					}
				}
				t.Error("no change in 50 attempts")
			})
		}
		group.Wait()
		close(made)
		last, err := w.roster.Client.Get(t.Context(), "secret")
		if err != nil {
			t.Fatal(err)
		}
		for p := range made {
			if p.ID == string(last.Kvs[0].Value) && (!w.has(a, p) || !w.has(b, p)) {
				t.Errorf("round %d: a member does not have the key in use", i)
			}
		}
		if _, err := w.roster.Client.Put(t.Context(), w.keys.Left(), fmt.Sprint(i)); err != nil { // as if a host left
			t.Fatal(err)
		}
	}
}

// TestHostsWithoutTheKeyAsk: a host that joins later gets the key from another that runs, and so does one whose record lost it.
func TestHostsWithoutTheKeyAsk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.join("aaaaaa", nil)
	p := w.prepare(a)
	if !w.use(p) {
		t.Fatal("no key")
	}
	b := w.join("bbbbbb", a)
	if _, err := b.Get(t.Context(), p.ID); !errors.Is(err, ErrNoKey) {
		t.Fatalf("a host that joined: %v", err)
	}
	w.run(b)
	select {
	case <-b.obtained:
		t.Error("a key without a host that runs")
	case <-time.After(300 * time.Millisecond):
	}
	w.run(a)
	select {
	case <-b.obtained:
	case <-time.After(time.Minute):
		t.Fatal("no key from a host that runs")
	}
	if key, err := b.Get(t.Context(), p.ID); err != nil || !key.Equal(p.Key) {
		t.Errorf("%v", err)
	}
	etcdtest.Until(t, "the request is deleted", func() bool {
		asks, err := w.roster.Client.Get(t.Context(), w.keys.Asks(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && asks.Count == 0
	})
}

// TestRequestsOutOfDate: a host that has asked for a key that no host has, as one that a stranger named, still gets the present key, and no request
// stays after it has made a key.
func TestRequestsOutOfDate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.join("aaaaaa", nil)
	p := w.prepare(a)
	if !w.use(p) {
		t.Fatal("no key")
	}
	b := w.join("bbbbbb", a)
	asks := func(want string) func() bool {
		return func() bool {
			text, _, err := fleet.Get(t.Context(), w.roster.Client, w.keys.Asks()+"bbbbbb")
			return err == nil && string(text) == want
		}
	}
	lacks := func(id string) {
		t.Helper()
		if _, err := b.Get(t.Context(), id); !errors.Is(err, ErrNoKey) {
			t.Fatal(err)
		}
	}
	w.run(a)
	w.run(b)
	lacks("unknown")
	etcdtest.Until(t, "the first request", asks("unknown"))
	lacks(p.ID)
	select {
	case <-b.obtained:
	case <-time.After(time.Minute):
		t.Fatal("no present key")
	}
	lacks("lost")
	etcdtest.Until(t, "a request", asks("lost"))
	if _, err := w.roster.Client.Put(t.Context(), w.keys.Left(), "x"); err != nil { // as if a host left
		t.Fatal(err)
	}
	w.prepare(b)
	etcdtest.Until(t, "no request", asks(""))
}

// TestStrangersInEtcd: whoever writes to etcd without the authority's key gets no key by a host, a recipient or a request of their own, and gives no
// key to a member.
func TestStrangersInEtcd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.join("aaaaaa", nil)
	b := w.join("bbbbbb", a)
	_, recipient, err := pki.NewWrapKey()
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, record any) {
		t.Helper()
		text, err := fleet.Encode(record)
		if err == nil {
			_, err = w.roster.Client.Put(t.Context(), key, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	proofOfA := func() []byte {
		text, _, err := fleet.Get(t.Context(), w.roster.Client, w.keys.Wrap("aaaaaa"))
		wrap, errDecode := fleet.Decode[fleet.Wrap](text)
		if err != nil || errDecode != nil || len(wrap.Proof) == 0 {
			t.Fatal(err, errDecode)
		}
		return wrap.Proof
	}()
	put(w.keys.Host("dddddd"), fleet.Host{ID: "dddddd", Protocol: 1, Key: []byte{1}})
	put(w.keys.Wrap("dddddd"), fleet.Wrap{Recipient: recipient, Proof: proofOfA})
	p := w.prepare(a)
	if !w.use(p) {
		t.Fatal("no key")
	}
	w.run(a)
	if _, err := w.roster.Client.Put(t.Context(), w.keys.Asks()+"dddddd", p.ID); err != nil {
		t.Fatal(err)
	}
	etcdtest.Until(t, "the request is known", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return a.asks["dddddd"] != "" })
	if err := a.give(t.Context(), "dddddd", p.ID, p.Key); err == nil {
		t.Error("a stranger is given the key")
	}
	text, _, err := fleet.Get(t.Context(), w.roster.Client, w.keys.Wrap("dddddd"))
	wrap, errDecode := fleet.Decode[fleet.Wrap](text)
	if err != nil || errDecode != nil || len(wrap.Shared) > 0 {
		t.Errorf("a stranger has %d keys: %v, %v", len(wrap.Shared), err, errDecode)
	}

	// A key of a stranger, sealed to the recipient of a member, which is public.
	text, _, err = fleet.Get(t.Context(), w.roster.Client, w.keys.Wrap("bbbbbb"))
	if wrap, errDecode = fleet.Decode[fleet.Wrap](text); err != nil || errDecode != nil {
		t.Fatal(err, errDecode)
	}
	place := b.place("bbbbbb", "strange")
	for _, value := range []string{strings.Repeat("k", keyBytes), strings.Repeat("k", keyBytes+40)} {
		sealed, err := pki.Seal(wrap.Recipient, place, name.NewSecret(value))
		if err != nil {
			t.Fatal(err)
		}
		wrap.Shared = map[string][]byte{"strange": sealed, p.ID: wrap.Shared[p.ID]}
		put(w.keys.Wrap("bbbbbb"), wrap)
		if _, err := b.Get(t.Context(), "strange"); err == nil {
			t.Error("a key of a stranger is accepted")
		}
	}
	moved := wrap.Shared[p.ID]
	wrap.Shared = map[string][]byte{"moved": moved}
	put(w.keys.Wrap("bbbbbb"), wrap)
	if _, err := b.Get(t.Context(), "moved"); err == nil {
		t.Error("a key is accepted under another ID")
	}
}

// TestAnEarlierVersionProves: a host that joined with a version without proofs proves its recipient at the start; a recipient in etcd that is not
// its own it does not prove.
func TestAnEarlierVersionProves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.join("aaaaaa", nil)
	b := w.join("bbbbbb", a)
	key := w.keys.Wrap("bbbbbb")
	text, _, err := fleet.Get(t.Context(), w.roster.Client, key)
	wrap, errDecode := fleet.Decode[fleet.Wrap](text)
	if err != nil || errDecode != nil {
		t.Fatal(err, errDecode)
	}
	write := func(x fleet.Wrap) {
		t.Helper()
		text, err := fleet.Encode(x)
		if err == nil {
			_, err = w.roster.Client.Put(t.Context(), key, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	old := wrap
	old.Proof = nil
	write(old)
	if p := w.prepare(a); !w.use(p) || w.has(b, p) {
		t.Error("a host without a proof gets the key")
	}
	if err := b.prove(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, _, _ = fleet.Get(t.Context(), w.roster.Client, key)
	if now, err := fleet.Decode[fleet.Wrap](text); err != nil || string(now.Proof) != string(wrap.Proof) || now.Recipient != wrap.Recipient || len(now.CA) == 0 {
		t.Errorf("%+v, %v", now, err)
	}
	_, other, err := pki.NewWrapKey()
	if err != nil {
		t.Fatal(err)
	}
	old.Recipient = other
	write(old)
	if err := b.prove(t.Context()); err == nil {
		t.Error("a recipient of a stranger is proven")
	}
}

// TestKeyForManyHosts: a key is sealed to each host of a large fleet in the time of a change.
func TestKeyForManyHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.join("aaaaaa", nil)
	authority, err := a.authority(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hosts := nightly.Size(250, 10_000)
	var ops []clientv3.Op
	for i := range hosts {
		id := fmt.Sprintf("%06x", i)
		_, recipient, err := pki.NewWrapKey()
		if err != nil {
			t.Fatal(err)
		}
		proof, err := pki.ProveRecipient(authority, a.Identity.Founding, id, recipient)
		if err != nil {
			t.Fatal(err)
		}
		host, errHost := fleet.Encode(fleet.Host{ID: id, Protocol: 1})
		wrap, errWrap := fleet.Encode(fleet.Wrap{Recipient: recipient, CA: make([]byte, 400), Proof: proof})
		if err := errors.Join(errHost, errWrap); err != nil {
			t.Fatal(err)
		}
		if ops = append(ops, clientv3.OpPut(w.keys.Host(id), host), clientv3.OpPut(w.keys.Wrap(id), wrap)); len(ops) >= 100 || i == hosts-1 {
			if _, err := a.Client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
			ops = nil
		}
	}
	began := time.Now()
	p := w.prepare(a)
	took := time.Since(began)
	if !w.use(p) {
		t.Error("the key does not come into use")
	}
	lacking, err := a.lacking(t.Context(), authority, p.ID)
	if err != nil || len(lacking) > 0 {
		t.Errorf("%d of %d hosts lack the key: %v", len(lacking), hosts, err)
	}
	all, err := a.Client.Get(t.Context(), w.keys.Wraps(), clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d hosts in %v; %d bytes in a record", hosts, took, len(all.Kvs[0].Value))
}
