// Package follow notices when the sandboxes that boxes were attached to end, and when their containers are started again.
//
// It is told by the processes themselves (pidfds) and by Docker's events. Either is only a reason to look: what counts is
// where the sandbox is then ([foreign.Locate]), so that events that were lost, or happened while the gateway was down, change
// nothing.
package follow

import (
	"context"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/foreign"
	"boxgate/policy"
)

// Owner owns the attached boxes.
type Owner interface {
	// Attached lists the attached boxes.
	Attached() []policy.BoxID
	// Sandbox returns what a box is attached to, if there is such a box, and how often that has changed.
	Sandbox(id policy.BoxID) (s foreign.Sandbox, turn uint64, ok bool)
	// Lose takes a box off the network: its sandbox has ended. It does nothing once turn is another.
	Lose(ctx context.Context, id policy.BoxID, turn uint64, why string) error
	// Move attaches a box to the namespace that its sandbox runs in now. It does nothing once turn is another.
	Move(ctx context.Context, id policy.BoxID, turn uint64, to foreign.Found) error
}

// Follower follows the sandboxes of attached boxes. Safe for concurrent use.
type Follower struct {
	owner Owner
	log   *zap.Logger
	slots chan struct{} // bounds how many boxes are looked at at once
	wake  chan struct{} // a box was attached to a container of Docker

	mu    sync.Mutex
	ctx   context.Context         // that of Run; nil before it: nothing is looked at yet
	looks map[policy.BoxID]*look  // guarded by mu; one per box that is looked at
	watch map[policy.BoxID]func() // guarded by mu; ends the watch on a process
}

// look is one box being looked at.
type look struct{ again bool }

// atOnce is how many boxes are looked at at once, so that one whose network namespace is slow does not hold up the others. The kernel
// rules remove as many together when their sandboxes have ended.
const atOnce = 32

// pathsEvery is how often paths are checked, whose removal nobody reports, and what could not be done is tried again.
const pathsEvery = 5 * time.Second

// What fails is tried again after times that double.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// New returns a follower of the boxes of an owner.
func New(owner Owner, log *zap.Logger) *Follower {
	return &Follower{
		owner: owner, log: log, slots: make(chan struct{}, atOnce), wake: make(chan struct{}, 1),
		looks: map[policy.BoxID]*look{}, watch: map[policy.BoxID]func(){},
	}
}

// Run follows the boxes until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	f.mu.Lock()
	f.ctx = ctx
	f.mu.Unlock()
	defer f.stop()
	var docker sync.WaitGroup
	docker.Go(func() { f.followDocker(ctx) })
	defer docker.Wait()
	f.lookAtAll(func(foreign.Sandbox) bool { return true })
	tick := time.NewTicker(pathsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.lookAtAll(needsTicks)
		}
	}
}

// needsTicks reports whether nothing else says when a sandbox changes.
func needsTicks(s foreign.Sandbox) bool { return s.Kind == api.AttachNetNS && s.Pin != "" }

// stop stops watching processes.
func (f *Follower) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stop := range f.watch {
		stop()
	}
	clear(f.watch)
}

// lookAtAll looks at all boxes that are attached to sandboxes of some kind.
func (f *Follower) lookAtAll(wanted func(foreign.Sandbox) bool) {
	for _, id := range f.owner.Attached() {
		if s, _, ok := f.owner.Sandbox(id); ok && wanted(s) {
			f.look(id)
		}
	}
}

// Look looks where the sandbox of a box is, because it was attached, detached, or may have changed.
func (f *Follower) Look(id policy.BoxID) {
	f.look(id)
	if s, _, ok := f.owner.Sandbox(id); !ok || !isContainer(s) {
		return
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// look has a box looked at; once more if it is being looked at.
func (f *Follower) look(id policy.BoxID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx == nil || f.ctx.Err() != nil {
		return
	}
	if l := f.looks[id]; l != nil {
		l.again = true
		return
	}
	f.looks[id] = &look{}
	go f.lookUntilSettled(f.ctx, id)
}

// lookUntilSettled looks at a box until nothing has happened to it meanwhile. What fails is tried again.
func (f *Follower) lookUntilSettled(ctx context.Context, id policy.BoxID) {
	for wait := firstRetry; ; {
		f.slots <- struct{}{}
		err := f.lookOnce(ctx, id)
		<-f.slots
		if err != nil && ctx.Err() == nil {
			if wait == firstRetry {
				f.log.Warn("an attached box cannot follow its sandbox yet; trying again", zap.String("box", string(id)), zap.Error(err))
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, lastRetry)
		}
		if f.settled(ctx, id, err == nil) {
			return
		}
	}
}

// settled ends looking at a box, unless there is reason to look again.
func (f *Follower) settled(ctx context.Context, id policy.BoxID, done bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() == nil && (!done || f.looks[id].again) {
		f.looks[id].again = false
		return false
	}
	delete(f.looks, id)
	return true
}

// lookOnce finds out where the sandbox of a box is, and has the box follow.
func (f *Follower) lookOnce(ctx context.Context, id policy.BoxID) error {
	s, turn, ok := f.owner.Sandbox(id)
	if !ok { // detached
		f.watchProcess(id, nil)
		return nil
	}
	place, err := foreign.Locate(ctx, s)
	if err != nil {
		return err
	}
	switch {
	case place.Moved.NS != nil:
		defer place.Moved.NS.Close()
		f.again(id) // to watch it there
		return f.owner.Move(ctx, id, turn, place.Moved)
	case place.Ended != "":
		f.watchProcess(id, place.Process)
		return f.owner.Lose(ctx, id, turn, place.Ended)
	}
	f.watchProcess(id, place.Process)
	return nil
}

// again has a box that is being looked at looked at once more.
func (f *Follower) again(id policy.BoxID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks[id].again = true
}

// watchProcess waits for the end of a process, if there is one, in place of the one before.
func (f *Follower) watchProcess(id policy.BoxID, process *os.File) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stop := f.watch[id]; stop != nil {
		stop()
		delete(f.watch, id)
	}
	if process == nil {
		return
	}
	if f.ctx.Err() != nil {
		process.Close()
		return
	}
	stopped := false // guarded by mu
	f.watch[id] = func() {
		stopped = true
		process.Close()
	}
	go func() {
		foreign.AwaitEnd(process)
		f.mu.Lock()
		ended := !stopped
		f.mu.Unlock()
		if ended {
			f.look(id)
		}
	}()
}
