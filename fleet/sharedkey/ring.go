// Package sharedkey has the key that seals the secrets which all hosts of a fleet share, such as its global header rules. Each host has the key
// in its [fleet.Wrap], sealed to its own wrap key. A change of secrets makes another key if a host has left since the present one was
// made, so that no host reads secrets that were written after it had left.
//
// A key is encrypted twice: with a key that is derived from the authority's, so that only members can make one, and then to the recipient of
// the host, so that only that host reads it. A recipient is used only with its proof, see [pki.ProveRecipient].
//
// A host that joins, or is updated from a version without shared keys, asks the others: it writes a key below the watched prefix,
// and one of the others seals the present key to it.
package sharedkey

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/fleet"
	"boxgate/fleet/pki"
	"boxgate/fleet/watch"
	"boxgate/internal/required"
	"boxgate/policy/name"
)

// Config configures a [Ring].
type Config struct {
	Client   *clientv3.Client
	Keys     fleet.Keys
	Identity fleet.Identity
	Guard    func() clientv3.Cmp     // see [fleet/member.Session.Guard]
	Lease    func() clientv3.LeaseID // of this host; 0: it has no lease
	Hosts    func() int              // in the directory
	Obtained func()                  // called when another host has answered
	Log      *zap.Logger
	// AuthorityKey returns the key of the authority, as etcd has it for this host.
	AuthorityKey func(context.Context) (name.Secret, error)
}

// Ring has the shared keys as this host knows them. Safe for concurrent use.
type Ring struct {
	Config
	wake chan struct{}

	mu    sync.Mutex
	known map[string]name.Secret // by ID; see maxKnown
	asks  map[string]string      // host → ID of the key that it asks for
	want  string                 // ID of the key that this host lacks
	asked string                 // ID of the key that this host has asked for, if the request may still be in etcd
}

// maxKnown bounds the keys in memory. All but the latest are needed for older objects only, which a restored backup of etcd may have.
const maxKnown = 8

// Errors of a ring.
var (
	// ErrNoKey: this host does not have the key. It asks the others for it.
	ErrNoKey = errors.New("this host does not have the key of the fleet's secrets yet; another host that runs gives it")
	// ErrContended: other hosts changed the key at the same time, again and again.
	ErrContended = errors.New("other hosts change the key of the fleet's secrets, or hosts leave, at the same time; try again")
)

// New returns a ring. It answers and asks after [Ring.Run].
func New(c Config) (*Ring, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	return &Ring{Config: c, wake: make(chan struct{}, 1), known: map[string]name.Secret{}, asks: map[string]string{}}, nil
}

// authority returns the key of the authority that this host has joined. Whoever writes to etcd could seal another to this host.
func (r *Ring) authority(ctx context.Context) (name.Secret, error) {
	key, err := r.AuthorityKey(ctx)
	if err == nil {
		_, err = pki.LoadAuthority(r.Identity.CA, key)
	}
	return key, err
}

// place binds a sealed key to its fleet, host and ID.
func (r *Ring) place(host, id string) string {
	return r.Identity.Founding + " " + r.Keys.Wrap(host) + " " + id
}

// purpose is the purpose of the key that is derived from the authority's.
const purpose = "shared key"

// seal seals a key to a host.
func (r *Ring) seal(authority name.Secret, host, recipient, id string, key name.Secret) ([]byte, error) {
	sealer, err := pki.NewSealer(authority, purpose)
	if err != nil {
		return nil, err
	}
	place := r.place(host, id)
	return pki.Seal(recipient, place, name.NewSecret(string(sealer.Seal(place, []byte(key.Reveal())))))
}

// open opens a key that is sealed to this host.
func (r *Ring) open(authority name.Secret, id string, text []byte) (name.Secret, error) {
	place := r.place(r.Identity.Host, id)
	inner, err := pki.Open(name.NewSecret(r.Identity.Wrap), place, text)
	if err != nil {
		return name.Secret{}, err
	}
	sealer, err := pki.NewSealer(authority, purpose)
	if err != nil {
		return name.Secret{}, err
	}
	key, err := sealer.Open(place, []byte(inner.Reveal()))
	if err != nil || len(key) != keyBytes {
		return name.Secret{}, errors.New("the key of the fleet's secrets in etcd was not made by a member")
	}
	return name.NewSecret(string(key)), nil
}

// keyBytes is the length of a key.
const keyBytes = 32

// Get returns a key by its ID, from memory or from the [fleet.Wrap] of this host. After [ErrNoKey] the others are asked for it.
func (r *Ring) Get(ctx context.Context, id string) (name.Secret, error) {
	if key, ok := r.cached(id); ok {
		return key, nil
	}
	wrap, _, err := r.wrap(ctx, r.Identity.Host)
	if err != nil {
		return name.Secret{}, err
	}
	text, ok := wrap.Shared[id]
	if !ok || id == "" {
		r.ask(id)
		return name.Secret{}, ErrNoKey
	}
	authority, err := r.authority(ctx)
	if err != nil {
		return name.Secret{}, err
	}
	key, err := r.open(authority, id, text)
	if err != nil {
		r.ask(id)
		return name.Secret{}, errors.Join(ErrNoKey, err)
	}
	r.learn(id, key)
	return key, nil
}

func (r *Ring) cached(id string) (name.Secret, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key, ok := r.known[id]
	return key, ok
}

func (r *Ring) learn(id string, key name.Secret) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxKnown {
		clear(r.known)
	}
	r.known[id] = key
	if r.want != "" { // another one that is still needed is asked for again, see [Ring.Get]
		r.want = ""
		r.hurry()
	}
}

// ask has [Ring.Run] ask the others for a key.
func (r *Ring) ask(id string) {
	r.mu.Lock()
	r.want = id
	r.mu.Unlock()
	r.hurry()
}

func (r *Ring) hurry() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// wrap reads the record of a host; the zero record if it does not exist.
func (r *Ring) wrap(ctx context.Context, host string) (fleet.Wrap, int64, error) {
	text, revision, err := fleet.Get(ctx, r.Client, r.Keys.Wrap(host))
	if err != nil || text == nil {
		return fleet.Wrap{}, 0, err
	}
	wrap, err := fleet.Decode[fleet.Wrap](text)
	return wrap, revision, err
}

// Prepared is a key for a change of secrets.
type Prepared struct {
	ID  string
	Key name.Secret
	// If and Then belong to the transaction of the change: it fails if a host has left, or another key was made.
	If   []clientv3.Cmp
	Then []clientv3.Op
}

// Prepare returns the key that a change must seal secrets with. That is the present one, or a new one, which every member then has: for the
// first change, if a host has left since the present one was made, or if this host does not have it.
func (r *Ring) Prepare(ctx context.Context) (p Prepared, err error) {
	for range attempts {
		if p, err = r.prepare(ctx); !errors.Is(err, ErrContended) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return p, err
		case <-time.After(mathrand.N(mostBackoff)): // of two hosts that make keys, one is faster the next time
		}
	}
	return p, err
}

// mostBackoff is the longest wait after another host was faster.
const mostBackoff = 200 * time.Millisecond

func (r *Ring) prepare(ctx context.Context) (Prepared, error) {
	answer, err := r.Client.Txn(ctx).Then(clientv3.OpGet(r.Keys.SharedKey()), clientv3.OpGet(r.Keys.Left(), clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return Prepared{}, fleet.Unreachable(ctx, err)
	}
	var now fleet.SharedKey
	revision, left := int64(0), int64(0)
	if kvs := answer.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
		left = kvs[0].ModRevision
	}
	if kvs := answer.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		revision = kvs[0].ModRevision
		if now, err = fleet.Decode[fleet.SharedKey](kvs[0].Value); err != nil {
			now = fleet.SharedKey{} // another program has written it: it is replaced
		}
	}
	if now.ID != "" && now.Left == left {
		key, err := r.Get(ctx, now.ID)
		if err == nil {
			return Prepared{ID: now.ID, Key: key, If: r.unchanged(revision, left)}, nil
		}
		if !errors.Is(err, ErrNoKey) {
			return Prepared{}, err
		}
	}
	return r.rotate(ctx, now, revision, left)
}

// unchanged are the conditions that no host has left and no key was made.
func (r *Ring) unchanged(revision, left int64) []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(r.Keys.SharedKey()), "=", revision), clientv3.Compare(clientv3.ModRevision(r.Keys.Left()), "=", left)}
}

// rotate makes a key, announces it and seals it to every member. It comes into use with the transaction of the change. A second host
// that does the same announces another, so that the writes and the change of the first fail.
func (r *Ring) rotate(ctx context.Context, now fleet.SharedKey, revision, left int64) (Prepared, error) {
	id, key := make([]byte, 16), make([]byte, keyBytes)
	_, _ = rand.Read(id)  // never fails (crypto/rand)
	_, _ = rand.Read(key) // never fails (crypto/rand)
	p := Prepared{ID: hex.EncodeToString(id), Key: name.NewSecret(string(key))}
	authority, err := r.authority(ctx)
	if err != nil {
		return Prepared{}, err
	}
	now.Next = p.ID
	announced, err := fleet.Encode(now)
	if err != nil {
		return Prepared{}, err
	}
	made, err := fleet.Encode(fleet.SharedKey{ID: p.ID, Left: left})
	if err != nil {
		return Prepared{}, err
	}
	answer, err := r.Client.Txn(ctx).If(append(r.unchanged(revision, left), r.Guard())...).Then(clientv3.OpPut(r.Keys.SharedKey(), announced)).Commit()
	if err != nil {
		return Prepared{}, fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		return Prepared{}, ErrContended
	}
	p.If, p.Then = r.unchanged(answer.Header.Revision, left), []clientv3.Op{clientv3.OpPut(r.Keys.SharedKey(), made)}
	if err := r.distribute(ctx, authority, p, now.ID); err != nil {
		return Prepared{}, err
	}
	r.learn(p.ID, p.Key)
	return p, nil
}

// attempts bounds the repetitions of a write after other hosts have changed the same records.
const attempts = 16

// batch is the number of records in one transaction; etcd refuses more than 128 operations.
const batch = 100

// distribute seals a prepared key to every member. Keys but the present and the prepared one are removed.
func (r *Ring) distribute(ctx context.Context, authority name.Secret, p Prepared, present string) error {
	for range attempts {
		due, err := r.lacking(ctx, authority, p.ID)
		if err != nil || len(due) == 0 {
			return err
		}
		for part := range slices.Chunk(due, batch) {
			conditions, ops := append(slices.Clone(p.If), r.Guard()), []clientv3.Op(nil)
			for _, w := range part {
				text, err := r.withKey(authority, w, p, present)
				if err != nil {
					return err
				}
				conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(r.Keys.Wrap(w.host)), "=", w.revision))
				ops = append(ops, clientv3.OpPut(r.Keys.Wrap(w.host), text))
			}
			if _, err := r.Client.Txn(ctx).If(conditions...).Then(ops...).Commit(); err != nil { // the records of a failed transaction are due again
				return fleet.Unreachable(ctx, err)
			}
		}
	}
	return ErrContended
}

// record is the wrap record of a host.
type record struct {
	host     string
	text     []byte
	wrap     fleet.Wrap
	revision int64
}

// page is the number of records in one answer.
const page = 500

// lacking returns the records of members that do not have a key. A host without a proof is no member that secrets are sealed to.
func (r *Ring) lacking(ctx context.Context, authority name.Secret, id string) (due []record, err error) {
	members := map[string]bool{}
	hosts := func(host string, _ []byte, _ int64) { members[host] = true }
	if err := r.each(ctx, r.Keys.Hosts(), hosts, clientv3.WithKeysOnly()); err != nil {
		return nil, err
	}
	err = r.each(ctx, r.Keys.Wraps(), func(host string, text []byte, revision int64) {
		wrap, err := fleet.Decode[fleet.Wrap](text)
		if err != nil || !members[host] || wrap.Shared[id] != nil {
			return
		}
		if !pki.IsProven(authority, r.Identity.Founding, host, wrap.Recipient, wrap.Proof) {
			r.Log.Warn("the wrap key of a host is not proven; it does not get secrets of the fleet", zap.String("host", host))
			return
		}
		due = append(due, record{host, text, wrap, revision})
	})
	return due, err
}

// each reads the records below a prefix, in pages of one revision.
func (r *Ring) each(ctx context.Context, prefix string, do func(id string, text []byte, revision int64), options ...clientv3.OpOption) error {
	at := int64(0)
	for from, end := prefix, clientv3.GetPrefixRangeEnd(prefix); ; {
		answer, err := r.Client.Get(ctx, from, append(options, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(at))...)
		if err != nil {
			return fleet.Unreachable(ctx, err)
		}
		if at == 0 {
			at = answer.Header.Revision
		}
		for _, kv := range answer.Kvs {
			do(strings.TrimPrefix(string(kv.Key), prefix), kv.Value, kv.ModRevision)
		}
		if !answer.More {
			return nil
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
}

// withKey returns the record of a host with a key added. Fields that this version does not know are kept.
func (r *Ring) withKey(authority name.Secret, w record, p Prepared, present string) (string, error) {
	sealed, err := r.seal(authority, w.host, w.wrap.Recipient, p.ID, p.Key)
	if err != nil {
		return "", err
	}
	keep := map[string][]byte{p.ID: sealed}
	if text, ok := w.wrap.Shared[present]; ok {
		keep[present] = text
	}
	return withField(w.text, "shared", keep)
}

// withField replaces a field of a record.
func withField(text []byte, field string, value any) (string, error) {
	fields, err := fleet.Decode[map[string]json.RawMessage](text)
	if err != nil {
		return "", err
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return "", err
	}
	fields[field] = encoded
	return fleet.Encode(fields)
}

// Follow takes a change of the watched prefix.
func (r *Ring) Follow(c watch.Change) {
	changed := false
	r.mu.Lock()
	for _, e := range c.Set {
		if host, ok := strings.CutPrefix(e.Key, r.Keys.Asks()); ok && host != r.Identity.Host {
			r.asks[host], changed = string(e.Value), true
		}
	}
	for _, key := range c.Deleted {
		if host, ok := strings.CutPrefix(key, r.Keys.Asks()); ok {
			delete(r.asks, host)
			changed = changed || host == r.Identity.Host
		}
	}
	r.mu.Unlock()
	if changed {
		r.hurry()
	}
}

// Times of [Ring.Run].
const (
	callTimeout  = 5 * time.Second
	retryEvery   = 2 * time.Second
	spreadByHost = time.Millisecond // by host of the fleet: the first that answers spares the others a read
	mostSpread   = 10 * time.Second
)

// Run proves the recipient of this host, asks for keys that it lacks, and answers other hosts, until ctx is done.
func (r *Ring) Run(ctx context.Context) {
	for proven := false; ; {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		if err := r.prove(call); err == nil {
			proven = true
		} else if ctx.Err() == nil && !errors.Is(err, fleet.ErrUnreachable) && !errors.Is(err, errConditions) {
			r.Log.Warn("the wrap key of this host is not proven yet", zap.Error(err))
		}
		cancel()
		if !proven {
			if !r.pause(ctx, retryEvery) {
				return
			}
			continue
		}
		break
	}
	for {
		r.seek(ctx)
		r.answer(ctx)
		wait := time.Duration(0)
		if r.busy() {
			wait = retryEvery
		}
		if !r.pause(ctx, wait) {
			return
		}
	}
}

// busy reports whether asks are open.
func (r *Ring) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.want != "" || r.asked != "" || len(r.asks) > 0
}

// pause waits for news, or for most; 0: however long. It returns false if ctx is done.
func (r *Ring) pause(ctx context.Context, most time.Duration) bool {
	var after <-chan time.Time
	if most > 0 {
		after = time.After(most)
	}
	select {
	case <-ctx.Done():
		return false
	case <-r.wake:
	case <-after:
	}
	return true
}

// prove adds the proof to the record of a host that joined with a version without shared keys.
func (r *Ring) prove(ctx context.Context) error {
	text, revision, err := fleet.Get(ctx, r.Client, r.Keys.Wrap(r.Identity.Host))
	if err != nil || text == nil {
		return err
	}
	wrap, err := fleet.Decode[fleet.Wrap](text)
	if err != nil {
		return err
	}
	authority, err := r.authority(ctx)
	if err != nil {
		return err
	}
	if pki.IsProven(authority, r.Identity.Founding, r.Identity.Host, wrap.Recipient, wrap.Proof) {
		return nil
	}
	own, err := pki.RecipientOf(name.NewSecret(r.Identity.Wrap))
	if err == nil && own != wrap.Recipient {
		err = errors.New("the wrap key in etcd is not the one of this host")
	}
	if err != nil {
		return err
	}
	proof, err := pki.ProveRecipient(authority, r.Identity.Founding, r.Identity.Host, own)
	if err != nil {
		return err
	}
	next, err := withField(text, "proof", proof)
	if err != nil {
		return err
	}
	return r.commit(ctx, []clientv3.Cmp{r.Guard(), clientv3.Compare(clientv3.ModRevision(r.Keys.Wrap(r.Identity.Host)), "=", revision)}, clientv3.OpPut(r.Keys.Wrap(r.Identity.Host), next))
}

// errConditions is the error of a write whose conditions are not met.
var errConditions = errors.New("the host has no lease, or the records have changed")

func (r *Ring) commit(ctx context.Context, conditions []clientv3.Cmp, ops ...clientv3.Op) error {
	answer, err := r.Client.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	if !answer.Succeeded {
		return errConditions
	}
	return nil
}

// seek looks for the key that this host lacks, and asks the others for it if it is not there. It withdraws a request that is out of date.
func (r *Ring) seek(ctx context.Context) {
	r.mu.Lock()
	id, asked := r.want, r.asked
	r.mu.Unlock()
	if id == "" && asked == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ask := r.Keys.Asks() + r.Identity.Host
	if id == "" {
		if err := r.commit(ctx, []clientv3.Cmp{r.Guard()}, clientv3.OpDelete(ask)); err == nil {
			r.setAsked("")
		}
		return
	}
	wrap, _, err := r.wrap(ctx, r.Identity.Host)
	if err == nil && wrap.Shared[id] != nil {
		if _, err = r.Get(ctx, id); err == nil {
			r.Obtained()
			return
		}
	}
	lease := r.Lease()
	if lease == 0 { // etcd would keep the request without one
		return
	}
	conditions := []clientv3.Cmp{r.Guard()}
	if asked == id {
		conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(ask), "=", 0))
	}
	if err := r.commit(ctx, conditions, clientv3.OpPut(ask, id, clientv3.WithLease(lease))); err == nil {
		r.setAsked(id)
		r.Log.Info("this host asks the others for the key of the fleet's secrets")
	}
}

func (r *Ring) setAsked(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = id
}

// answer gives the present key to the hosts that ask for it.
func (r *Ring) answer(ctx context.Context) {
	r.mu.Lock()
	asks := maps.Clone(r.asks)
	r.mu.Unlock()
	if len(asks) == 0 {
		return
	}
	if spread := min(mostSpread, time.Duration(r.Hosts())*spreadByHost); spread > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(mathrand.N(spread)):
		}
	}
	for host, id := range asks {
		r.mu.Lock()
		still := r.asks[host] == id
		r.mu.Unlock()
		if key, ok := r.cached(id); still && ok {
			call, cancel := context.WithTimeout(ctx, callTimeout)
			if err := r.give(call, host, id, key); err != nil && ctx.Err() == nil {
				r.Log.Debug("a host did not get the key of the fleet's secrets from this one", zap.String("host", host), zap.Error(err))
			}
			cancel()
		}
	}
}

// give seals the present key to a member that asked for it.
func (r *Ring) give(ctx context.Context, host, id string, key name.Secret) error {
	if err := fleet.CheckHost(host); err != nil {
		return err
	}
	answer, err := r.Client.Txn(ctx).Then(clientv3.OpGet(r.Keys.SharedKey()), clientv3.OpGet(r.Keys.Wrap(host)), clientv3.OpGet(r.Keys.Host(host), clientv3.WithCountOnly())).Commit()
	if err != nil {
		return fleet.Unreachable(ctx, err)
	}
	present, wraps := answer.Responses[0].GetResponseRange().Kvs, answer.Responses[1].GetResponseRange().Kvs
	if len(present) == 0 || len(wraps) == 0 || answer.Responses[2].GetResponseRange().Count == 0 {
		return errConditions
	}
	now, err := fleet.Decode[fleet.SharedKey](present[0].Value)
	if err != nil {
		return err
	}
	wrap, err := fleet.Decode[fleet.Wrap](wraps[0].Value)
	if err != nil {
		return err
	}
	authority, err := r.authority(ctx)
	if err != nil {
		return err
	}
	if now.ID != id || !pki.IsProven(authority, r.Identity.Founding, host, wrap.Recipient, wrap.Proof) {
		return fmt.Errorf("the host asks for another key than the present one, or its wrap key is not proven")
	}
	text, err := r.withKey(authority, record{host, wraps[0].Value, wrap, wraps[0].ModRevision}, Prepared{ID: id, Key: key}, now.Next)
	if err != nil {
		return err
	}
	return r.commit(ctx, []clientv3.Cmp{
		r.Guard(), clientv3.Compare(clientv3.ModRevision(r.Keys.SharedKey()), "=", present[0].ModRevision), clientv3.Compare(clientv3.ModRevision(r.Keys.Wrap(host)), "=", wraps[0].ModRevision),
		clientv3.Compare(clientv3.CreateRevision(r.Keys.Host(host)), ">", 0),
	}, clientv3.OpPut(r.Keys.Wrap(host), text), clientv3.OpDelete(r.Keys.Asks()+host))
}
