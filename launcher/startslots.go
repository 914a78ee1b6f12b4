package launcher

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// maxSlotTime is how long the start of a command may occupy a slot. A box can stall the runtime, which reads files of the
// box.
const maxSlotTime = 500 * time.Millisecond

// startSlots limits how many commands start at the same time. Each start costs some ten milliseconds of CPU in processes of the
// host, so a box that starts hundreds together would delay everything else, policy changes included. There are a few slots
// per core. Waiting starters (API keys or boxes) get them round-robin, however many commands each of them has queued.
// Create it with [newStartSlots]. Safe for concurrent use.
type startSlots struct {
	mu      sync.Mutex
	free    int
	order   []starter                     // starters that wait, each once
	waiting map[starter][]chan<- struct{} // the queue of each starter in order; a channel is closed to pass on a slot
}

// starter is an API key, or a box if no key starts the command.
type starter struct {
	key string
	box policy.BoxID
}

func starterOf(box policy.BoxID, spec ExecSpec) starter {
	if spec.Starter != "" {
		return starter{key: spec.Starter}
	}
	return starter{box: box}
}

func newStartSlots() *startSlots {
	return &startSlots{free: 2 * runtime.GOMAXPROCS(0), waiting: map[starter][]chan<- struct{}{}}
}

// acquire waits for a slot. done releases it; after maxSlotTime it is released in any case.
func (s *startSlots) acquire(ctx context.Context, id starter) (done func(), err error) {
	turn := make(chan struct{})
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		close(turn)
	} else {
		if len(s.waiting[id]) == 0 {
			s.order = append(s.order, id)
		}
		s.waiting[id] = append(s.waiting[id], turn)
	}
	s.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
		s.cancelWait(id, turn)
		return nil, context.Cause(ctx)
	}
	end := sync.OnceFunc(s.release)
	late := time.AfterFunc(maxSlotTime, end)
	return func() { late.Stop(); end() }, nil
}

// cancelWait gives up waiting for a slot. A slot that was assigned in the meantime goes to the next starter.
func (s *startSlots) cancelWait(id starter, turn chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[id], turn)
	if i < 0 {
		s.releaseLocked()
		return
	}
	if s.waiting[id] = slices.Delete(s.waiting[id], i, i+1); len(s.waiting[id]) == 0 {
		delete(s.waiting, id)
		s.order = slices.DeleteFunc(s.order, func(other starter) bool { return other == id })
	}
}

func (s *startSlots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

// releaseLocked passes the slot to the first starter in line, which then moves to the end.
func (s *startSlots) releaseLocked() {
	if len(s.order) == 0 {
		s.free++
		return
	}
	id := s.order[0]
	s.order = s.order[1:]
	next := s.waiting[id]
	close(next[0])
	if len(next) == 1 {
		delete(s.waiting, id)
		return
	}
	s.waiting[id] = next[1:]
	s.order = append(s.order, id)
}
