// Package sandboxwatch detects the end of sandboxes that boxes are attached to, and restarts of their containers.
//
// Events come from pidfds and from Docker. An event only triggers a look at the current location of the sandbox
// ([sandboxns.Locate]), so that lost events, and events while the gateway was down, make no difference.
package sandboxwatch

import (
	"context"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/sandboxns"
	"boxgate/policy"
)

// Owner manages the attached boxes.
type Owner interface {
	// Attached lists the attached boxes.
	Attached() []policy.BoxID
	// Sandbox returns the sandbox of a box, if the box exists. turn is the number of changes of it so far.
	Sandbox(id policy.BoxID) (s sandboxns.Sandbox, turn uint64, ok bool)
	// Disconnect disconnects a box whose sandbox has ended. It has no effect if turn is outdated.
	Disconnect(ctx context.Context, id policy.BoxID, turn uint64, why string) error
	// Reattach attaches a box to the namespace that its sandbox runs in now. It has no effect if turn is outdated.
	Reattach(ctx context.Context, id policy.BoxID, turn uint64, to sandboxns.Found) error
}

// Follower follows the sandboxes of attached boxes. Safe for concurrent use.
type Follower struct {
	owner Owner
	log   *zap.Logger
	slots chan struct{} // limits concurrent looks
	wake  chan struct{} // wakes followDocker after a box was attached to a Docker container

	mu      sync.Mutex
	ctx     context.Context         // of Run; nil before it: no looks yet
	looks   map[policy.BoxID]*look  // guarded by mu; the running looks
	watches map[policy.BoxID]func() // guarded by mu; stops watching a process
}

// look is a running look at a box.
type look struct{ again bool }

// concurrentLooks is the maximum number of concurrent looks, so that a slow network namespace does not delay other boxes. It is
// also how many boxes the kernel rules remove together when their sandboxes have ended.
const concurrentLooks = 32

// pathsEvery is the interval at which paths are checked, because their removal causes no event, and failed looks are
// retried.
const pathsEvery = 5 * time.Second

// Failed looks are retried with exponential backoff.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// New returns a follower of the boxes of an owner.
func New(owner Owner, log *zap.Logger) *Follower {
	return &Follower{
		owner: owner, log: log, slots: make(chan struct{}, concurrentLooks), wake: make(chan struct{}, 1),
		looks: map[policy.BoxID]*look{}, watches: map[policy.BoxID]func(){},
	}
}

// Run follows the boxes until ctx is done.
func (f *Follower) Run(ctx context.Context) {
	f.mu.Lock()
	f.ctx = ctx
	f.mu.Unlock()
	defer f.stopWatching()
	var docker sync.WaitGroup
	docker.Go(func() { f.followDocker(ctx) })
	defer docker.Wait()
	f.lookAtAll(func(sandboxns.Sandbox) bool { return true })
	tick := time.NewTicker(pathsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.lookAtAll(isPolled)
		}
	}
}

// isPolled reports whether changes of a sandbox cause no events.
func isPolled(s sandboxns.Sandbox) bool {
	return (s.Kind == api.AttachNetNS || s.Kind == api.AttachCNI) && s.Pin != ""
}

// stopWatching stops watching processes.
func (f *Follower) stopWatching() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stop := range f.watches {
		stop()
	}
	clear(f.watches)
}

// lookAtAll starts looks at all boxes whose sandboxes match.
func (f *Follower) lookAtAll(wanted func(sandboxns.Sandbox) bool) {
	for _, id := range f.owner.Attached() {
		if s, _, ok := f.owner.Sandbox(id); ok && wanted(s) {
			f.startLook(id)
		}
	}
}

// Look looks at the sandbox of a box after it was attached or detached, or may have changed.
func (f *Follower) Look(id policy.BoxID) {
	f.startLook(id)
	if s, _, ok := f.owner.Sandbox(id); !ok || !isContainer(s) {
		return
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// startLook starts a look at a box, or has a running one repeated.
func (f *Follower) startLook(id policy.BoxID) {
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

// lookUntilSettled looks at a box until it has not changed during the look. Failures are retried.
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
		if f.endLook(ctx, id, err == nil) {
			return
		}
	}
}

// endLook ends the look at a box, unless it must be repeated.
func (f *Follower) endLook(ctx context.Context, id policy.BoxID, done bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() == nil && (!done || f.looks[id].again) {
		f.looks[id].again = false
		return false
	}
	delete(f.looks, id)
	return true
}

// lookOnce locates the sandbox of a box, and updates the box.
func (f *Follower) lookOnce(ctx context.Context, id policy.BoxID) error {
	s, turn, ok := f.owner.Sandbox(id)
	if !ok { // detached
		f.watchProcess(id, nil)
		return nil
	}
	place, err := sandboxns.Locate(ctx, s)
	if err != nil {
		return err
	}
	switch {
	case place.Moved.NS != nil:
		defer place.Moved.NS.Close()
		f.repeatLook(id) // to watch it there
		return f.owner.Reattach(ctx, id, turn, place.Moved)
	case place.Ended != "":
		f.watchProcess(id, place.Process)
		return f.owner.Disconnect(ctx, id, turn, place.Ended)
	}
	f.watchProcess(id, place.Process)
	return nil
}

// repeatLook has the running look at a box repeated.
func (f *Follower) repeatLook(id policy.BoxID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks[id].again = true
}

// watchProcess replaces the watched process of a box. nil stops watching.
func (f *Follower) watchProcess(id policy.BoxID, process *os.File) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stop := f.watches[id]; stop != nil {
		stop()
		delete(f.watches, id)
	}
	if process == nil {
		return
	}
	if f.ctx.Err() != nil {
		process.Close()
		return
	}
	stopped := false // guarded by mu
	f.watches[id] = func() {
		stopped = true
		process.Close()
	}
	go func() {
		sandboxns.AwaitEnd(process)
		f.mu.Lock()
		ended := !stopped
		f.mu.Unlock()
		if ended {
			f.startLook(id)
		}
	}()
}

// dockerRetry is the maximum delay before Docker is contacted again after it went away.
const dockerRetry = 10 * time.Second

// followDocker looks at boxes when Docker reports events of their containers. Whenever the event stream restarts, it
// looks at all of them, since events may have been missed.
func (f *Follower) followDocker(ctx context.Context) {
	for wait := firstRetry; ctx.Err() == nil; {
		if !f.hasContainers() {
			select {
			case <-ctx.Done():
			case <-f.wake:
			}
			continue
		}
		_ = sandboxns.Events(ctx, time.Now(), func() {
			wait = firstRetry
			f.lookAtAll(isContainer)
		}, func(container string) {
			f.lookAtAll(func(s sandboxns.Sandbox) bool { return isContainer(s) && s.Container == container })
		})
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, dockerRetry)
	}
}

// isContainer reports whether Docker knows the location of a sandbox.
func isContainer(s sandboxns.Sandbox) bool { return s.Kind == api.AttachDocker && s.Container != "" }

// hasContainers reports whether any box is attached to a Docker container.
func (f *Follower) hasContainers() bool {
	for _, id := range f.owner.Attached() {
		if s, _, ok := f.owner.Sandbox(id); ok && isContainer(s) {
			return true
		}
	}
	return false
}
