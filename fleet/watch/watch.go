// Package watch follows the keys below a prefix of etcd. It lists them at a revision and watches from there. After a
// compaction, a gap in the events or in another history of etcd, such as a restored backup, it lists them again and reports the
// differences, so that its user sees every key in its latest state, and no state twice.
package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"boxgate/internal/required"
)

// Entry is one key with its value. The value must not be changed.
type Entry struct {
	Key      string
	Value    []byte
	Revision int64 // of its last change
}

// Change is one step from a state of the prefix to a later one: keys with new values and deleted keys, each sorted.
type Change struct {
	Revision int64 // the prefix is as of this revision
	Set      []Entry
	Deleted  []string
	Listed   bool // the result of a listing, which may combine many changes
}

// Config configures a [Follower].
type Config struct {
	Client *clientv3.Client
	Prefix string // ends with a slash
	// Apply receives each change, one at a time. The first one is a listing, and may be empty. Its duration delays later changes.
	Apply func(Change)
	Log   *zap.Logger
	// MaxKeys and MaxBytes bound the keys and the sum of the sizes of keys and values. Beyond them changes are no longer reported,
	// until a listing fits again.
	MaxKeys, MaxBytes int
	// Check is the time between two comparisons with etcd; 0: half a minute. A watch that is behind for that long is replaced by a
	// listing.
	Check time.Duration
}

const (
	defaultCheck = 30 * time.Second
	callTimeout  = 10 * time.Second
	page         = 500 // keys of one answer of a listing

	leastWait = 100 * time.Millisecond // after a failure, doubled up to mostWait
	mostWait  = 30 * time.Second

	hurriedWait = time.Second // instead of mostWait, while the user waits

	askAgain = 50 * time.Millisecond // between requests of a hurry to the watch
)

// Follower follows a prefix. Safe for concurrent use.
type Follower struct {
	Config

	hurry chan struct{} // of Hurry

	mu       sync.Mutex
	known    map[string]Entry
	bytes    int
	state    State
	history  history
	asked    int  // calls of Hurry
	compared int  // those before the last comparison, or the last listing, began
	answered int  // those before a comparison whose changes are applied
	complete bool // known is the state at state.Revision, and a watch may go on from there
}

// State describes how current a follower is.
type State struct {
	Revision int64     // all changes up to this revision were applied; 0: no listing yet
	At       time.Time // when that was last known to be the latest revision
	Listings int       // complete listings since the start
	Keys     int
}

// history identifies a history of etcd, in which revisions only grow. A backup that is restored with the settings of its cluster
// has the same cluster ID, but earlier revisions or terms.
type history struct {
	cluster, term uint64
	revision      int64
}

// New returns a follower. It has no effect until [Follower.Run].
func New(c Config) (*Follower, error) {
	if err := required.Fields(c); err != nil {
		return nil, err
	}
	if c.Check == 0 {
		c.Check = defaultCheck
	}
	return &Follower{Config: c, known: map[string]Entry{}, hurry: make(chan struct{}, 1)}, nil
}

// Hurry makes [Follower.Run] compare with etcd immediately, also if it waits after a failure. [Follower.Current] is false until all changes
// before the call are applied.
func (f *Follower) Hurry() {
	f.mu.Lock()
	f.asked++
	f.mu.Unlock()
	select {
	case f.hurry <- struct{}{}:
	default:
	}
}

// Current reports whether all changes before the last call of [Follower.Hurry] are applied. It is also false while changes are known to be
// missing, such as after a compaction, and if etcd has not confirmed the state for three times [Config.Check].
func (f *Follower) Current() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	listed := f.state.Listings > 0
	return f.answered == f.asked && !(listed && (!f.complete || time.Since(f.state.At) > 3*f.Check))
}

// hurried reports whether the user waits for changes before a call of [Follower.Hurry].
func (f *Follower) hurried() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answered != f.asked
}

// List makes the first listing, before [Follower.Run].
func (f *Follower) List(ctx context.Context) error { return f.list(ctx) }

// State returns how current the follower is.
func (f *Follower) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.state
	s.Keys = len(f.known)
	return s
}

// The reasons for a new listing.
var (
	errCompacted = errors.New("the events since the last known revision were compacted")
	errHistory   = errors.New("etcd has another history, such as that of a restored backup")
	errGap       = errors.New("the events of the watch are not in order")
	errBehind    = errors.New("the watch is behind")
	errTooLarge  = errors.New("the prefix has more keys or bytes than the limit")
)

// Run follows the prefix until ctx is done. Call it once. While etcd is away, the last state stays.
func (f *Follower) Run(ctx context.Context) {
	for wait := leastWait; ctx.Err() == nil; {
		before := f.State()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errCompacted) || errors.Is(err, errHistory) || errors.Is(err, errGap) || errors.Is(err, errBehind) || errors.Is(err, errTooLarge) {
			f.setComplete(false)
		}
		f.Log.Warn("following the keys of the fleet was interrupted", zap.String("prefix", f.Prefix), zap.Error(err))
		if f.State().At.After(before.At) {
			wait = leastWait
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)): // many hosts lose the same member together
		case <-f.hurry:
			wait = leastWait
		}
		if wait = min(2*wait, mostWait); f.hurried() {
			wait = min(wait, hurriedWait)
		}
	}
}

// follow lists the keys if needed, and watches until an error.
func (f *Follower) follow(ctx context.Context) error {
	if !f.complete {
		if err := f.list(ctx); err != nil {
			return err
		}
	}
	return f.watch(ctx)
}

// list reads all keys at one revision, in pages, and applies the differences.
func (f *Follower) list(ctx context.Context) error {
	began := f.begin()
	now, total, first := map[string]Entry{}, 0, (*etcdserverpb.ResponseHeader)(nil)
	for from, end := f.Prefix, clientv3.GetPrefixRangeEnd(f.Prefix); ; {
		ops := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(page)}
		if first != nil {
			ops = append(ops, clientv3.WithRev(first.Revision))
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		answer, err := f.Client.Get(call, from, ops...)
		cancel()
		if err != nil {
			return fmt.Errorf("listing: %w", err)
		}
		if first == nil {
			first = answer.Header
		}
		if answer.Header.ClusterId != first.ClusterId {
			return errHistory
		}
		for _, kv := range answer.Kvs {
			total += len(kv.Key) + len(kv.Value)
			now[string(kv.Key)] = Entry{string(kv.Key), kv.Value, kv.ModRevision}
		}
		if len(now) > f.MaxKeys || total > f.MaxBytes {
			return fmt.Errorf("%w (%d keys, %d bytes)", errTooLarge, f.MaxKeys, f.MaxBytes)
		}
		if !answer.More {
			break
		}
		from = string(answer.Kvs[len(answer.Kvs)-1].Key) + "\x00"
	}
	f.replace(now, total, first, began)
	return nil
}

// replace makes a listing the known state and applies the differences. Values are compared, not revisions: another history may have
// the same revision for another value.
func (f *Follower) replace(now map[string]Entry, total int, header *etcdserverpb.ResponseHeader, began time.Time) {
	change := Change{Revision: header.Revision, Listed: true}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if old, ok := f.known[key]; !ok || !slices.Equal(old.Value, now[key].Value) {
			change.Set = append(change.Set, now[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(f.known)) {
		if _, ok := now[key]; !ok {
			change.Deleted = append(change.Deleted, key)
		}
	}
	f.mu.Lock()
	f.known, f.bytes, f.history = now, total, history{header.ClusterId, header.RaftTerm, header.Revision}
	f.mu.Unlock()
	f.Apply(change)
	f.setComplete(true)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Revision, f.state.At, f.state.Listings, f.answered = header.Revision, began, f.state.Listings+1, f.compared
}

// begin begins a comparison with etcd, and returns the time.
func (f *Follower) begin() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.compared = f.asked
	return time.Now()
}

func (f *Follower) setComplete(is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.complete = is
}

// watch applies events until an error. It compares with etcd at the start, and then at each interval.
func (f *Follower) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.sameHistory(ctx); err != nil {
		return err
	}
	// A member without a leader ends the watch, by the option of package fleet, instead of keeping it silent.
	events := f.Client.Watch(ctx, f.Prefix, clientv3.WithPrefix(), clientv3.WithRev(f.State().Revision+1), clientv3.WithProgressNotify(), clientv3.WithFragment())
	check := time.NewTicker(f.Check)
	defer check.Stop()
	again := time.After(askAgain)
	for due := int64(0); ; {
		select {
		case answer, ok := <-events:
			if !ok {
				return errors.New("the watch ended")
			}
			if err := f.applyEvents(answer); err != nil {
				return err
			}
		case <-check.C:
			if f.State().Revision < due {
				return errBehind
			}
			if err := f.compare(ctx); err != nil {
				return err
			}
			due = f.history.revision
		case <-f.hurry:
			if err := f.compare(ctx); err != nil {
				return err
			}
			again = time.After(askAgain)
		case <-again:
			if again = nil; !f.hurried() {
				continue
			}
			// A watch that was not open yet when it was asked does not answer.
			if err := f.Client.RequestProgress(ctx); err != nil {
				return fmt.Errorf("asking for progress: %w", err)
			}
			again = time.After(askAgain)
		}
	}
}

// compare reads the latest revision, and asks the watch for its own.
func (f *Follower) compare(ctx context.Context) error {
	if err := f.sameHistory(ctx); err != nil {
		return err
	}
	if err := f.Client.RequestProgress(ctx); err != nil {
		return fmt.Errorf("asking for progress: %w", err)
	}
	return nil
}

// sameHistory reads the latest revision of etcd, from a quorum, and compares it with the earlier ones. A watch alone would wait
// silently for a revision that another history reaches later, with other events before it.
func (f *Follower) sameHistory(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	began := f.begin()
	answer, err := f.Client.Get(call, f.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("reading the latest revision: %w", err)
	}
	h, seen := answer.Header, f.history
	if h.ClusterId != seen.cluster || h.RaftTerm < seen.term || h.Revision < max(seen.revision, f.State().Revision) {
		return errHistory
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.history = history{h.ClusterId, h.RaftTerm, h.Revision}
	if f.state.Revision >= h.Revision {
		f.state.At, f.answered = began, f.compared
	}
	return nil
}

// applyEvents applies an answer of the watch.
func (f *Follower) applyEvents(answer clientv3.WatchResponse) error {
	switch err := answer.Err(); {
	case answer.CompactRevision != 0 || errors.Is(err, rpctypes.ErrCompacted):
		return errCompacted
	case err != nil:
		return fmt.Errorf("the watch: %w", err)
	case answer.Header.ClusterId != f.history.cluster:
		return errHistory
	case answer.IsProgressNotify():
		f.advance(answer.Header.Revision)
		return nil
	case len(answer.Events) == 0:
		return nil
	}
	change, err := f.merge(answer.Events)
	if err != nil {
		return err
	}
	f.Apply(change)
	f.advance(change.Revision)
	return nil
}

// merge adds events to the known state and returns them as a change, each key once. After an error the state is unchanged, so that a
// listing reports the events.
func (f *Follower) merge(events []*clientv3.Event) (Change, error) {
	change, latest, bytes, keys := Change{Revision: f.State().Revision}, map[string]*clientv3.Event{}, f.bytes, len(f.known)
	for i, e := range events {
		if e.Kv.ModRevision < change.Revision || i == 0 && e.Kv.ModRevision == change.Revision {
			return Change{}, errGap
		}
		change.Revision, latest[string(e.Kv.Key)] = e.Kv.ModRevision, e
	}
	for _, key := range slices.Sorted(maps.Keys(latest)) {
		kv, old, existed := latest[key].Kv, f.known[key], false
		if _, existed = f.known[key]; existed {
			bytes, keys = bytes-len(key)-len(old.Value), keys-1
		}
		switch {
		case latest[key].Type != clientv3.EventTypeDelete:
			bytes, keys = bytes+len(key)+len(kv.Value), keys+1
			change.Set = append(change.Set, Entry{key, kv.Value, kv.ModRevision})
		case existed:
			change.Deleted = append(change.Deleted, key)
		}
	}
	if keys > f.MaxKeys || bytes > f.MaxBytes {
		return Change{}, fmt.Errorf("%w (%d keys, %d bytes)", errTooLarge, f.MaxKeys, f.MaxBytes)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range change.Set {
		f.known[e.Key] = e
	}
	for _, key := range change.Deleted {
		delete(f.known, key)
	}
	f.bytes = bytes
	return change, nil
}

// advance records that all changes up to a revision were applied.
func (f *Follower) advance(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.Revision = max(f.state.Revision, revision); f.state.Revision >= f.history.revision {
		f.state.At, f.answered = time.Now(), f.compared
	}
}
