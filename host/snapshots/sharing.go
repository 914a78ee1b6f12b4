package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/host/bucket"
	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// Layers provides the layers of this host.
type Layers interface {
	Layer(layer string) (launcher.Layer, error)
	SetLayerDigest(layer, digest string) error
	ArchiveLayer(ctx context.Context, layer string, w io.Writer) error
	UnarchiveLayer(ctx context.Context, layer string, as launcher.Layer, r io.Reader, grow func(n int64) error) error
}

// ErrStore means that the snapshot store of the hosts cannot be used at the moment.
var ErrStore = errors.New("the snapshot store cannot be used")

const (
	// listAge is the maximum age of the list of snapshots of other hosts, and listPatience that of a failed attempt.
	listAge      = time.Second
	listPatience = 5 * time.Second
	// listWait is how long calls wait for a listing. One that takes longer goes on, and calls do not wait for it.
	listWait = 5 * time.Second
	// holdTime is how long the layers of a snapshot of another host stay on this one after their last use.
	holdTime = time.Hour
	// tidyInterval is the time between two looks for layers whose hold has ended, and sweepInterval that between two sweeps of the store.
	tidyInterval  = time.Minute
	sweepInterval = time.Hour
	// growthStep is after how many bytes of a download the free space is checked again.
	growthStep = 4 << 20
)

// sharing is the use of a store of several hosts.
type sharing struct {
	name      string // of the store, in records
	bucket    *bucket.Bucket
	layers    Layers
	space     func(n int64) error
	operator  func(key string) bool // whether a key has the share of the operator
	wait      time.Duration         // listWait
	uploads   slots
	downloads slots

	mu         sync.Mutex
	listed     time.Time                  // guarded by mu, like the fields below; beginning of the last successful listing
	running    *listing                   // nil: none
	failed     time.Time                  // of the last failed listing
	failure    error                      // of the last listing, or of the running one if it takes too long; nil: it succeeded
	elsewhere  map[string]bucket.Manifest // all snapshots in the store, by ID
	refs       map[string]bucket.Layer    // their layers, by name
	unreadable int                        // manifests that cannot be read
	held       map[string]time.Time       // layer → end of its hold
	fetching   map[string]chan struct{}   // layer → closed when its download has ended
}

// listing is a listing of the store.
type listing struct {
	began time.Time
	late  bool          // calls do not wait for it any longer
	err   error         // set before done is closed
	done  chan struct{} // closed at its end
}

// Share makes snapshots in a store that other hosts use as well. name identifies the store in records. space returns an error if this host's
// disk has no room for n more bytes. operator reports whether an API key has the operator's share of the transfers, which others leave free. Call
// Share before the other methods.
func (s *Manager) Share(name string, b *bucket.Bucket, layers Layers, space func(n int64) error, operator func(key string) bool) {
	s.sharing = &sharing{
		name: name, bucket: b, layers: layers, space: space, operator: operator, wait: listWait, elsewhere: map[string]bucket.Manifest{}, refs: map[string]bucket.Layer{},
		held: map[string]time.Time{}, fetching: map[string]chan struct{}{},
	}
	s.loops.Go(s.keepTidy)
}

// Shares reports whether snapshots are in a store of several hosts.
func (s *Manager) Shares() bool { return s.sharing != nil }

// keepTidy removes layers that are no longer needed, on this host and in the store.
func (s *Manager) keepTidy() {
	tick := time.NewTicker(fault.Interval(tidyInterval))
	defer tick.Stop()
	swept := time.Now()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.endHolds(); err != nil {
			s.log.Error("layers of snapshots of other hosts could not be removed", zap.Error(err))
		}
		if time.Since(swept) < fault.Interval(sweepInterval) {
			continue
		}
		swept = time.Now()
		n, err := s.sharing.bucket.Sweep(s.ctx)
		if err != nil && s.ctx.Err() == nil {
			s.log.Error("unneeded layers in the snapshot store could not be removed", zap.Error(err))
		}
		if n > 0 {
			s.log.Info("unneeded layers in the snapshot store were removed", zap.Int("layers", n))
		}
	}
}

// endHolds lets go of layers that were not used for a while.
func (s *Manager) endHolds() error {
	x := s.sharing
	x.mu.Lock()
	var over []string
	for layer, end := range x.held {
		if time.Now().After(end) && x.fetching[layer] == nil {
			over = append(over, layer)
			delete(x.held, layer)
		}
	}
	x.mu.Unlock()
	if len(over) == 0 {
		return nil
	}
	return errors.Join(s.store.ReleaseLayers(over), s.Sweep())
}

// take waits for a place of a transfer for a key.
func (x *sharing) take(ctx context.Context, of *slots, key string) (done func(), err error) {
	if key != "" && x.operator(key) {
		key = ""
	}
	return of.take(ctx, key)
}

// publish uploads the layers of a captured snapshot, and then its record.
func (s *Manager) publish(ctx context.Context, r store.Snapshot) error {
	x := s.sharing
	ctx, cancel := context.WithTimeoutCause(ctx, bucket.PublishTime, errors.New("the upload to the snapshot store took too long"))
	defer cancel()
	m := bucket.Manifest{Snapshot: r}
	m.Snapshot.State, m.Snapshot.Shared = Ready, x.name
	for _, name := range r.Layers {
		ref, err := x.upload(ctx, name, r.TakenBy)
		if err != nil {
			return err
		}
		m.Layers = append(m.Layers, ref)
	}
	if err := fault.At(ctx, "snapshot: layers uploaded"); err != nil {
		return err
	}
	if err := x.bucket.Publish(ctx, m); err != nil {
		return err
	}
	return fault.At(ctx, "snapshot: manifest uploaded")
}

// upload uploads a layer of this host for a key. Others may have their turn between two layers.
func (x *sharing) upload(ctx context.Context, name, key string) (bucket.Layer, error) {
	l, err := x.layers.Layer(name)
	if err != nil {
		return bucket.Layer{}, err
	}
	done, err := x.take(ctx, &x.uploads, key)
	if err != nil {
		return bucket.Layer{}, err
	}
	defer done()
	ref := bucket.Layer{Name: name, Size: l.Size, Image: l.Image}
	ref.Digest, ref.Packed, err = x.bucket.Upload(ctx, func(ctx context.Context, w io.Writer) error { return x.layers.ArchiveLayer(ctx, name, w) })
	if err != nil {
		return bucket.Layer{}, err
	}
	return ref, x.layers.SetLayerDigest(name, ref.Digest)
}

// finish publishes a captured snapshot, and marks it as ready.
func (s *Manager) finish(ctx context.Context, r store.Snapshot) error {
	if s.sharing == nil {
		return nil
	}
	if err := s.publish(ctx, r); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	_, err := s.store.Change(r.ID, func(r *store.Snapshot) { r.State, r.Shared = Ready, s.sharing.name })
	if errors.Is(err, store.ErrNotFound) { // deleted in between
		err = errors.Join(err, s.sharing.bucket.Remove(context.WithoutCancel(ctx), r.ID))
	}
	return err
}

// resume continues the upload of a snapshot that an earlier run captured. It returns false if the capture is not complete.
func (s *Manager) resume(r store.Snapshot) bool {
	if s.sharing == nil || r.Size == 0 {
		return false
	}
	for _, layer := range r.Layers {
		if _, err := s.sharing.layers.Layer(layer); err != nil {
			return false
		}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	t := &runningSnapshot{cancel: cancel, ended: make(chan struct{})}
	s.register(r.ID, t)
	go func() {
		defer s.unregister(r.ID, t)
		s.settle(r, s.contained(func() error { return s.finish(ctx, r) }))
	}()
	return true
}

// errSlow is the error of a listing that takes too long.
var errSlow = fmt.Errorf("%w: the snapshot store has not answered within %v", ErrStore, listWait)

// Refresh lists the store again, unless that was done a moment ago. After an error, or if the store does not answer for a few seconds, the last list
// stays, and calls fail immediately for a while.
func (s *Manager) Refresh(ctx context.Context) error {
	x := s.sharing
	if x == nil {
		return nil
	}
	l, err := s.refreshing()
	if l == nil {
		return err
	}
	late := time.NewTimer(time.Until(l.began.Add(x.wait)))
	defer late.Stop()
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.running != l {
		return l.err // it has just ended
	}
	if !l.late {
		l.late, x.failed, x.failure = true, time.Now(), errSlow
		s.log.Error("the snapshots of other hosts could not be listed yet", zap.Error(errSlow))
	}
	return errSlow
}

// refreshing returns the listing to wait for, or nil with the result.
func (s *Manager) refreshing() (*listing, error) {
	x := s.sharing
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.failure != nil && (x.running != nil || time.Since(x.failed) < fault.Interval(listPatience)):
		return nil, x.failure
	case x.running != nil:
		return x.running, nil
	case x.failure == nil && time.Since(x.listed) < listAge:
		return nil, nil
	case s.ctx.Err() != nil:
		return nil, s.ctx.Err()
	}
	l := &listing{began: time.Now(), done: make(chan struct{})}
	x.running = l
	s.loops.Go(func() {
		defer close(l.done)
		err := s.contained(func() error { return s.list(s.ctx) })
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrStore, err)
			s.log.Error("the snapshots of other hosts could not be listed", zap.Error(err))
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if l.err, x.running = err, nil; err != nil {
			x.failed, x.failure = time.Now(), err
		}
	})
	return l, nil
}

// list lists the store, and forgets the snapshots of this host that another one has deleted.
func (s *Manager) list(ctx context.Context) error {
	x, begun := s.sharing, time.Now()
	own, err := s.store.All() // before the store, so that it has the manifests of all
	if err != nil {
		return err
	}
	all, unreadable, err := x.bucket.Manifests(ctx)
	if err != nil {
		return err
	}
	elsewhere, refs := map[string]bucket.Manifest{}, map[string]bucket.Layer{}
	for _, m := range all {
		elsewhere[m.Snapshot.ID] = m
		for _, l := range m.Layers {
			refs[l.Name] = l
		}
	}
	x.mu.Lock()
	x.listed, x.failure, x.elsewhere, x.refs, x.unreadable = begun, nil, elsewhere, refs, unreadable
	x.mu.Unlock()
	if unreadable > 0 {
		return nil // a snapshot of this host may be among them
	}
	for _, r := range own {
		if _, ok := elsewhere[r.ID]; ok || r.Shared != x.name || r.State != Ready {
			continue
		}
		s.log.Info("a snapshot was deleted by another host", zap.String("snapshot", r.ID))
		if err := s.store.Delete([]string{r.ID}); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err := s.Sweep(); err != nil {
			return err
		}
	}
	return nil
}

// Elsewhere returns the snapshots of other hosts, of a box or of all for "", oldest first, as they were listed last.
func (s *Manager) Elsewhere(box policy.BoxID) (list []store.Snapshot, err error) {
	x := s.sharing
	if x == nil {
		return nil, nil
	}
	own, err := s.store.All()
	if err != nil {
		return nil, err
	}
	mine := map[string]bool{}
	for _, r := range own {
		mine[r.ID] = true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, m := range x.elsewhere {
		if !mine[id] && (box == "" || m.Snapshot.Box == box) {
			list = append(list, m.Snapshot)
		}
	}
	slices.SortFunc(list, func(a, b store.Snapshot) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return list, nil
}

// LayerSize returns the size of a layer in the store; false: it has no such layer.
func (s *Manager) LayerSize(layer string) (int64, bool) {
	x := s.sharing
	if x == nil {
		return 0, false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	ref, ok := x.refs[layer]
	return ref.Size, ok
}

// Find returns a snapshot of this host or of another one, or [store.ErrNotFound]. The layers of one of another host are kept for a while
// when [Manager.Fetch] has fetched them.
func (s *Manager) Find(ctx context.Context, id string) (store.Snapshot, error) {
	r, err := s.store.Get(id)
	x := s.sharing
	if !errors.Is(err, store.ErrNotFound) || x == nil {
		return r, err
	}
	listed := s.Refresh(ctx)
	x.mu.Lock()
	m, ok := x.elsewhere[id]
	x.mu.Unlock()
	switch {
	case listed != nil:
		return store.Snapshot{}, listed
	case !ok:
		return store.Snapshot{}, err
	}
	x.mu.Lock()
	for _, layer := range m.Snapshot.Layers {
		x.held[layer] = time.Now().Add(fault.Lease(holdTime))
	}
	x.mu.Unlock()
	return m.Snapshot, s.store.HoldLayers(m.Snapshot.Layers)
}

// Fetch downloads the layers that this host does not have, for an API key. progress is called with a line for each.
func (s *Manager) Fetch(ctx context.Context, key string, layers []string, progress func(string)) error {
	x := s.sharing
	if x == nil {
		return nil
	}
	for _, layer := range layers {
		if err := x.fetch(ctx, key, layer, progress); err != nil {
			return fmt.Errorf("layer %s of the snapshot: %w", layer, err)
		}
	}
	return nil
}

// errLayerDiffers means that two hosts have different layers of one name.
var errLayerDiffers = fmt.Errorf("%w: this host has another layer of that name", bucket.ErrDamaged)

// fetch downloads a layer, or waits for its download.
func (x *sharing) fetch(ctx context.Context, key, layer string, progress func(string)) error {
	for {
		x.mu.Lock()
		ref, known := x.refs[layer]
		other := x.fetching[layer]
		have, err := x.layers.Layer(layer)
		switch {
		case err == nil:
			x.mu.Unlock()
			if known && have.Digest != "" && have.Digest != ref.Digest {
				return errLayerDiffers
			}
			return nil
		case !known:
			x.mu.Unlock()
			return err
		case other == nil:
			ended := make(chan struct{})
			x.fetching[layer] = ended
			x.mu.Unlock()
			defer func() {
				x.mu.Lock()
				defer x.mu.Unlock()
				delete(x.fetching, layer)
				close(ended)
			}()
			return x.download(ctx, key, ref, progress)
		}
		x.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// download makes a layer of the store one of this host.
func (x *sharing) download(ctx context.Context, key string, ref bucket.Layer, progress func(string)) error {
	done, err := x.take(ctx, &x.downloads, key)
	if err != nil {
		return err
	}
	defer done()
	progress(fmt.Sprintf("fetching %d MiB of the snapshot from the store", ref.Packed>>20))
	if err := x.space(ref.Size); err != nil {
		return err
	}
	r, err := x.bucket.Download(ctx, ref)
	if err != nil {
		return err
	}
	defer r.Close()
	unchecked := int64(0)
	return x.layers.UnarchiveLayer(ctx, ref.Name, launcher.Layer{Digest: ref.Digest, Image: ref.Image}, r, func(n int64) error {
		if unchecked += n; unchecked < growthStep {
			return nil
		}
		unchecked = 0
		return x.space(growthStep)
	})
}

// split returns which snapshots are on this host, and which are in the store of the hosts, or may be: the answer to the upload of a record
// may be lost, and a gateway may end before it knows it. Their uploads have ended. If a snapshot is unknown, the error is
// [store.ErrNotFound].
func (s *Manager) split(ctx context.Context, ids []string) (own, shared []string, err error) {
	if s.sharing == nil {
		return ids, nil, nil
	}
	var unfinished []string
	for _, id := range ids {
		switch r, err := s.store.Get(id); {
		case err == nil:
			own = append(own, id)
			if r.Shared == s.sharing.name || r.State != Ready {
				shared = append(shared, id)
			}
			if r.State == Creating {
				unfinished = append(unfinished, id)
			}
		case !errors.Is(err, store.ErrNotFound):
			return nil, nil, err
		default:
			if _, err := s.Find(ctx, id); err != nil {
				return nil, nil, err
			}
			shared = append(shared, id)
		}
	}
	s.cancel(unfinished)
	return own, shared, nil
}

// withdraw removes snapshots from the store of the hosts.
func (s *Manager) withdraw(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if err := s.sharing.bucket.Remove(ctx, id); err != nil {
			return fmt.Errorf("%w: %w", ErrStore, err)
		}
		s.sharing.mu.Lock()
		s.sharing.elsewhere = maps.Clone(s.sharing.elsewhere)
		delete(s.sharing.elsewhere, id)
		s.sharing.mu.Unlock()
	}
	return nil
}

// Away reports whether the last listing of the store failed, or takes too long.
func (s *Manager) Away() bool {
	x := s.sharing
	if x == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.failure != nil
}

// StoreUp returns 1 if the last listing of the store succeeded, else 0.
func (s *Manager) StoreUp() float64 {
	if s.Away() {
		return 0
	}
	return 1
}

// Unreadable returns the number of snapshots in the store that cannot be read.
func (s *Manager) Unreadable() float64 {
	s.sharing.mu.Lock()
	defer s.sharing.mu.Unlock()
	return float64(s.sharing.unreadable)
}
