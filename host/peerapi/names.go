package peerapi

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/fleet/directory"
	"boxgate/fleet/node"
	"boxgate/internal/fault"
	"boxgate/policy"
)

// Times of the directory of boxes.
const (
	claimTimeout = 5 * time.Second
	syncEvery    = 2 * time.Second
	syncTimeout  = 30 * time.Second
	// conflictEvery is the time between two attempts to claim the name of a box that another one has.
	conflictEvery = time.Minute
)

// Directory is the part of the fleet that Names uses; implemented by [boxgate/fleet/node.Node].
type Directory interface {
	Directory() directory.Directory
	Fenced() bool
	Epoch() node.Epoch
}

// Names keeps the boxes of this host in the directory of the fleet. The name of a new box is claimed before the box is stored; everything else,
// also the claim of a box that was not stored because the gateway crashed, is brought up to date by [Names.Run]. Safe for concurrent use.
type Names struct {
	fleet Directory
	boxes func() map[string]directory.Entry // the boxes of this host by ID
	log   *zap.Logger

	seen      node.Epoch    // of known; used by sync alone
	beginning chan struct{} // held during a Begin of the directory

	mu        sync.Mutex
	epoch     int64                      // guarded by mu, like the fields below; of the directory; 0: it must be begun, as after the start, a fence, or a write without an answer
	known     map[string]directory.Entry // as the directory has them; nil: it must be read
	late      map[string]directory.Entry // claims that succeeded since the reading began
	pending   map[string]bool            // claims of boxes that are not stored yet
	conflicts map[string]time.Time       // boxes whose name another one has: when that was found
}

// NewNames returns the names of a host. boxes returns its boxes by ID; a box must be among them before the function that [Names.Claim] returned
// for it is called.
func NewNames(f Directory, boxes func() map[string]directory.Entry, log *zap.Logger) *Names {
	return &Names{fleet: f, boxes: boxes, log: log, beginning: make(chan struct{}, 1), late: map[string]directory.Entry{}, pending: map[string]bool{}, conflicts: map[string]time.Time{}}
}

// Claim claims the name of a new box, in one transaction. Call done once the box is stored, or will not be. A name of another box is an
// [api.ErrConflict]. Without must, a directory that does not answer is no error: the name is claimed later, or reported as a conflict in the log.
func (n *Names) Claim(ctx context.Context, id policy.BoxID, name string, labels []string, must bool) (done func(), err error) {
	if name == "" {
		return func() {}, nil
	}
	box, entry := string(id), directory.Entry{Name: name, Labels: labels}
	n.mu.Lock()
	n.pending[box] = true
	n.mu.Unlock()
	done = func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.pending, box)
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	err = n.claim(ctx, box, entry)
	switch {
	case err == nil:
		n.note(box, entry)
		return done, nil
	case errors.Is(err, directory.ErrNameTaken):
		done()
		return nil, api.Errorf(api.ErrConflict, "a box named %q exists already in the fleet", name)
	}
	n.unknown()
	if must {
		done()
		return nil, &api.Error{Kind: api.ErrUnavailable, Cause: err, Message: "the name of the box could not be claimed, and nothing was made: the directory of the fleet does not answer, or this host is cut off from it"}
	}
	n.log.Warn("the name of a box is not claimed in the fleet yet", zap.String("box", box), zap.Error(err))
	return done, nil
}

// claim writes a box. It begins again if the directory was begun since, because of another write without an answer.
func (n *Names) claim(ctx context.Context, box string, e directory.Entry) error {
	for {
		d, err := n.directory(ctx)
		if err != nil {
			return err
		}
		if err = d.Put(ctx, box, e); !errors.Is(err, directory.ErrSuperseded) {
			return err
		}
		n.supersede(d.Epoch)
	}
}

// directory returns the directory for writes. It is begun if that is necessary, so that no earlier write is made later.
func (n *Names) directory(ctx context.Context) (directory.Directory, error) {
	d := n.fleet.Directory()
	select {
	case n.beginning <- struct{}{}:
		defer func() { <-n.beginning }()
	case <-ctx.Done():
		return d, ctx.Err()
	}
	n.mu.Lock()
	d.Epoch = n.epoch
	n.mu.Unlock()
	if d.Epoch != 0 {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	var err error
	if d.Epoch, err = d.Begin(ctx); err != nil {
		return d, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.epoch = d.Epoch
	return d, nil
}

// supersede makes the next write begin the directory, if this epoch is still the last one.
func (n *Names) supersede(epoch int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.epoch == epoch {
		n.epoch, n.known = 0, nil
	}
}

// note remembers what the directory has.
func (n *Names) note(box string, e directory.Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known != nil {
		n.known[box] = e
	} else {
		n.late[box] = e
	}
}

// unknown makes the next [Names.sync] begin and read the directory. A write that failed may have been made, or may be on its way: a name would
// otherwise stay taken by a box that does not exist.
func (n *Names) unknown() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.epoch, n.known = 0, nil
}

// forget remembers that the directory does not have a box.
func (n *Names) forget(box string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, box)
	delete(n.conflicts, box)
}

// Release frees the name of a box that was deleted, so that it can be used again immediately. If the directory does not answer, [Names.Run] does
// it later.
func (n *Names) Release(ctx context.Context, id policy.BoxID) {
	n.mu.Lock()
	e, known := n.known[string(id)]
	n.mu.Unlock()
	if !known || e.Name == "" || n.fleet.Fenced() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	if err := n.fleet.Directory().Remove(ctx, string(id)); err != nil {
		n.log.Warn("the name of a deleted box is not free in the fleet yet", zap.String("box", string(id)), zap.Error(err))
		return
	}
	n.forget(string(id))
}

// Run keeps the directory up to date until ctx is done.
func (n *Names) Run(ctx context.Context) {
	tick := time.NewTicker(fault.Interval(syncEvery))
	defer tick.Stop()
	for failed := false; ; {
		err := n.sync(ctx)
		if err != nil && !failed && ctx.Err() == nil {
			n.log.Warn("the directory of the fleet does not have all boxes of this host", zap.Error(err))
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sync makes the directory agree with the boxes of this host. While this host is fenced it changes nothing.
func (n *Names) sync(ctx context.Context) error {
	if n.fleet.Fenced() {
		n.unknown()
		return nil
	}
	if epoch := n.fleet.Epoch(); epoch != n.seen { // also after a fence that was too short to be seen
		n.unknown()
		n.seen = epoch
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	d, err := n.directory(ctx)
	if err == nil {
		err = n.read(ctx, d)
	}
	if err != nil {
		return err
	}
	// The order matters: a claim that is known was pending then, or its box is there now.
	n.mu.Lock()
	known, pending := maps.Clone(n.known), maps.Clone(n.pending)
	n.mu.Unlock()
	if known == nil {
		return nil // a write had no answer in the meantime
	}
	have := n.boxes()
	for _, box := range slices.Sorted(maps.Keys(known)) {
		if _, ok := have[box]; ok || pending[box] {
			continue
		}
		if err := d.Remove(ctx, box); err != nil {
			return err
		}
		n.forget(box)
	}
	for _, box := range slices.Sorted(maps.Keys(have)) {
		if e, ok := known[box]; ok && e.Equal(have[box]) || pending[box] {
			continue
		}
		if err := n.put(ctx, d, box, have[box]); err != nil {
			return err
		}
	}
	return nil
}

// read reads the boxes of this host in the directory, unless they are known.
func (n *Names) read(ctx context.Context, d directory.Directory) error {
	n.mu.Lock()
	done := n.known != nil
	if !done {
		clear(n.late) // they are in the directory
	}
	n.mu.Unlock()
	if done {
		return nil
	}
	found, err := d.Boxes(ctx, d.Host)
	if err == nil {
		n.learn(d.Epoch, found)
	}
	return err
}

// learn remembers the boxes in the directory, and the claims since they were read, unless one of these had no answer.
func (n *Names) learn(epoch int64, found map[string]directory.Entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.epoch == epoch {
		maps.Copy(found, n.late)
		n.known = found
	}
}

// put writes a box. If another box has got its name, as in a restored backup of etcd, it is written without one.
func (n *Names) put(ctx context.Context, d directory.Directory, box string, e directory.Entry) error {
	n.mu.Lock()
	found, conflict := n.conflicts[box]
	n.mu.Unlock()
	if conflict && time.Since(found) < conflictEvery {
		return nil
	}
	err := d.Put(ctx, box, e)
	if !errors.Is(err, directory.ErrNameTaken) {
		if err != nil {
			n.unknown()
			return err
		}
		n.forget(box)
		n.note(box, e)
		return nil
	}
	n.log.Warn("another box of the fleet has the name of a box of this host, which is found by its ID only", zap.String("box", box), zap.String("name", e.Name))
	n.mu.Lock()
	n.conflicts[box] = time.Now()
	n.mu.Unlock()
	e.Name = ""
	if err := d.Put(ctx, box, e); err != nil {
		n.unknown()
		return err
	}
	n.note(box, e)
	return nil
}
