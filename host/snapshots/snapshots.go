// Package snapshots takes, lists and deletes snapshots of boxes: their records in the store, and their layers. A layer is
// removed when the store has no snapshot or box that needs it.
package snapshots

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/internal/fault"
	"boxgate/launcher"
	"boxgate/policy"
	"boxgate/store"
)

// The states of a snapshot.
const (
	Creating = "creating"
	Ready    = "ready"
	Failed   = "error"
)

const (
	// patience is how long [Manager.Take] waits for a snapshot to become ready.
	patience = 10 * time.Second
	// concurrentCaptures is the maximum number of concurrent captures, because boxes share the disk.
	concurrentCaptures = 4
)

// Boxes provides the files of boxes.
type Boxes interface {
	Capture(ctx context.Context, id policy.BoxID, layer string, grow func(n int64) error) (launcher.Captured, error)
	KeepLayers(needed func(layer string) bool) error
}

// Manager manages the snapshots of a gateway. Safe for concurrent use.
type Manager struct {
	log       *zap.Logger
	store     store.Snapshots
	boxes     Boxes
	contained func(func() error) error

	turns turns
	stop  context.CancelFunc
	ctx   context.Context // canceled by Close

	mu      sync.Mutex
	running map[string]*runningSnapshot // guarded by mu; by the ID of the snapshot

	sharing *sharing // nil: snapshots stay on this host
	loops   sync.WaitGroup
}

// runningSnapshot is a snapshot that is being taken.
type runningSnapshot struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when all its work has ended
}

// Allowance accounts for the disk space of a snapshot. All fields must be set; they are called by one goroutine at a
// time.
type Allowance struct {
	// Stored is called once the snapshot's record is stored and counts itself, or could not be stored.
	Stored func()
	// Grow reserves n more bytes before they are written. An error ends the snapshot.
	Grow func(n int64) error
	// Release releases all reservations: the bytes now count as the snapshot's, or are being removed.
	Release func()
}

// New returns a Manager. contained calls a function and converts a panic into an error.
func New(log *zap.Logger, stored store.Snapshots, boxes Boxes, contained func(func() error) error) *Manager {
	ctx, stop := context.WithCancel(context.Background())
	return &Manager{log: log, store: stored, boxes: boxes, contained: contained, turns: turns{free: concurrentCaptures}, ctx: ctx, stop: stop, running: map[string]*runningSnapshot{}}
}

// Recover cleans up after an earlier run: it marks unfinished snapshots as failed, and removes unneeded layers. Snapshots
// of an older version get the owner of their box, if the box still exists.
func (s *Manager) Recover() error {
	if err := errors.Join(s.store.SetOwners(), s.store.ReleaseLayers(nil)); err != nil {
		return err
	}
	list, err := s.store.All()
	if err != nil {
		return err
	}
	for _, r := range list {
		if r.State == Creating && !s.resume(r) {
			s.log.Warn("a snapshot was not complete when the gateway ended", zap.String("snapshot", r.ID), zap.String("box", string(r.Box)))
			if _, err := s.store.Change(r.ID, failed(errInterrupted)); err != nil {
				return err
			}
		}
	}
	return s.Sweep()
}

var errInterrupted = errors.New("the gateway ended while it was taken; take another")

// failed returns the change that marks a snapshot as failed.
func failed(why error) func(*store.Snapshot) {
	return func(r *store.Snapshot) { r.State, r.Error, r.Layers, r.Size = Failed, why.Error(), nil, 0 }
}

// Close stops the running captures and waits for them. Call it before the store is closed.
func (s *Manager) Close() {
	s.stop()
	for _, t := range s.all() {
		<-t.ended
	}
	s.loops.Wait()
}

func (s *Manager) all() (list []*runningSnapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.running {
		list = append(list, t)
	}
	return list
}

// Take takes a snapshot of a box. r describes the box and has its layers. Take returns when the snapshot is ready or has
// failed, or after a while with one that is still being taken, which continues even if ctx is done.
func (s *Manager) Take(ctx context.Context, r store.Snapshot, allowed Allowance) (store.Snapshot, error) {
	layer := r.ID
	r.State, r.CreatedAt, r.Layers = Creating, time.Now(), append(slices.Clone(r.Layers), layer)
	running, cancel := context.WithCancel(s.ctx)
	t := &runningSnapshot{cancel: cancel, ended: make(chan struct{})}
	s.register(r.ID, t)
	err := s.contained(func() error { return s.record(ctx, r) })
	allowed.Stored()
	if err != nil {
		allowed.Release()
		if left := s.store.Delete([]string{r.ID}); !errors.Is(left, store.ErrNotFound) {
			err = errors.Join(err, left)
		}
		s.unregister(r.ID, t)
		return store.Snapshot{}, err
	}
	go func() {
		defer s.unregister(r.ID, t)
		defer allowed.Release()
		s.captureAndStore(running, r, layer, allowed)
	}()
	waiting := time.NewTimer(patience)
	defer waiting.Stop()
	select {
	case <-t.ended:
	case <-waiting.C:
	case <-ctx.Done():
	}
	return s.store.Get(r.ID)
}

// record stores a new snapshot.
func (s *Manager) record(ctx context.Context, r store.Snapshot) error {
	if err := s.store.Add(r); err != nil {
		return err
	}
	return fault.At(ctx, "snapshot: record stored")
}

func (s *Manager) register(id string, t *runningSnapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[id] = t
}

func (s *Manager) unregister(id string, t *runningSnapshot) {
	t.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, id)
	close(t.ended)
}

// captureAndStore captures the box and stores the outcome. A panic counts as a failure.
func (s *Manager) captureAndStore(ctx context.Context, r store.Snapshot, layer string, allowed Allowance) {
	s.settle(r, s.contained(func() error { return s.capture(ctx, r, layer, allowed) }))
}

// settle stores the failure of a snapshot, if err is not nil.
func (s *Manager) settle(r store.Snapshot, err error) {
	switch _, gone := s.store.Get(r.ID); {
	case errors.Is(gone, store.ErrNotFound):
		s.log.Info("a snapshot was deleted while it was taken", zap.String("snapshot", r.ID), zap.String("box", string(r.Box)))
		return // the deletion removes its files
	case err == nil:
		return
	}
	s.log.Error("a snapshot failed", zap.String("snapshot", r.ID), zap.String("box", string(r.Box)), zap.Error(err))
	if errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	if _, err := s.store.Change(r.ID, failed(err)); err != nil && !errors.Is(err, store.ErrNotFound) {
		s.log.Error("the failure of a snapshot could not be stored", zap.String("snapshot", r.ID), zap.Error(err))
	}
	if err := s.Sweep(); err != nil {
		s.log.Error("the files of a failed snapshot could not be removed", zap.String("snapshot", r.ID), zap.Error(err))
	}
}

func (s *Manager) capture(ctx context.Context, r store.Snapshot, layer string, allowed Allowance) error {
	c, err := s.copy(ctx, r.Box, layer, false, allowed.Grow)
	if errors.Is(err, errYielded) {
		s.log.Info("a long snapshot is restarted later, because others are waiting", zap.String("snapshot", r.ID), zap.String("box", string(r.Box)))
		allowed.Release()
		c, err = s.copy(ctx, r.Box, layer, true, allowed.Grow)
	}
	if err != nil {
		return err
	}
	state := Ready
	if s.sharing != nil {
		state = Creating // until other hosts can use it
	}
	r, err = s.store.Change(r.ID, func(r *store.Snapshot) { r.State, r.Layers, r.Size = state, c.Layers, c.Size })
	if err != nil {
		return err
	}
	if err := s.finish(ctx, r); err != nil {
		return err
	}
	s.log.Info("snapshot taken", zap.String("snapshot", r.ID), zap.String("box", string(r.Box)), zap.Int64("bytes", c.Size), zap.Duration("frozen", c.Frozen))
	return fault.At(ctx, "snapshot: ready stored")
}

// copy captures a box when it is its turn.
func (s *Manager) copy(ctx context.Context, box policy.BoxID, layer string, long bool, grow func(int64) error) (launcher.Captured, error) {
	ctx, done, err := s.turns.acquire(ctx, box, long)
	if err != nil {
		return launcher.Captured{}, err
	}
	defer done()
	c, err := s.boxes.Capture(ctx, box, layer, grow)
	if err != nil && errors.Is(context.Cause(ctx), errYielded) {
		err = errYielded
	}
	return c, err
}

// List returns the snapshots of a box, or all for "", oldest first.
func (s *Manager) List(box policy.BoxID) ([]store.Snapshot, error) {
	list, err := s.store.All()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(r store.Snapshot) bool { return box != "" && r.Box != box }), nil
}

// Get returns a snapshot, or [store.ErrNotFound].
func (s *Manager) Get(id string) (store.Snapshot, error) { return s.store.Get(id) }

// Delete deletes snapshots. If one is unknown, it returns [store.ErrNotFound] without deleting any. Snapshots that
// are still being taken are canceled. Snapshots in the store of several hosts are removed there first; if that fails, the
// error is [ErrStore]. Boxes made from the snapshots keep the layers they need.
func (s *Manager) Delete(ctx context.Context, ids []string) error {
	own, shared, err := s.split(ctx, ids)
	if err != nil {
		return err
	}
	if err := s.withdraw(ctx, shared); err != nil {
		return err
	}
	if len(own) > 0 {
		err = s.store.Delete(own)
	}
	if err != nil {
		return err
	}
	s.cancel(own)
	fault.Mark(ctx, "delete snapshots: records gone")
	if err := s.Sweep(); err != nil { // the next sweep retries
		s.log.Error("the files of deleted snapshots could not be removed", zap.Error(err))
	}
	return nil
}

// cancel ends the taking of snapshots, and waits for the end.
func (s *Manager) cancel(ids []string) {
	for _, id := range ids {
		if t := s.find(id); t != nil {
			t.cancel()
			<-t.ended
		}
	}
}

func (s *Manager) find(id string) *runningSnapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[id]
}

// Sweep removes the layers that neither a snapshot nor a box needs.
func (s *Manager) Sweep() error {
	return s.boxes.KeepLayers(func(layer string) bool {
		needed, err := s.store.NeedsLayer(layer)
		return needed || err != nil
	})
}
