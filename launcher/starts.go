package launcher

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// startTurn is how long the start of a command may keep others waiting. A box can hold up the runtime, which reads files of the box.
const startTurn = 500 * time.Millisecond

// starts gives turns to the starts of commands. Each costs some ten milliseconds of a core in processes of the host: a box that
// starts hundreds at once would have everything else wait for the cores, changes of policies among it. There are a few turns for each
// core, and the starters that wait, API keys or boxes, get them one after the other, however many commands one of them has waiting. Create it
// with [newStarts]. Safe for concurrent use.
type starts struct {
	mu      sync.Mutex
	free    int
	order   []starter                     // that wait, each once
	waiting map[starter][]chan<- struct{} // of each in order; closed when it is the turn of one
}

// starter is an API key, or a box whose command no key starts.
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

func newStarts() *starts {
	return &starts{free: 2 * runtime.GOMAXPROCS(0), waiting: map[starter][]chan<- struct{}{}}
}

// take waits for a turn, which ends with done, or after a while.
func (s *starts) take(ctx context.Context, id starter) (done func(), err error) {
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
		s.abandon(id, turn)
		return nil, context.Cause(ctx)
	}
	end := sync.OnceFunc(s.end)
	late := time.AfterFunc(startTurn, end)
	return func() { late.Stop(); end() }, nil
}

// abandon no longer waits for a turn. If it has come by now, it is another's.
func (s *starts) abandon(id starter, turn chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[id], turn)
	if i < 0 {
		s.endLocked()
		return
	}
	if s.waiting[id] = slices.Delete(s.waiting[id], i, i+1); len(s.waiting[id]) == 0 {
		delete(s.waiting, id)
		s.order = slices.DeleteFunc(s.order, func(other starter) bool { return other == id })
	}
}

func (s *starts) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

// endLocked gives a turn to the starter that has waited for longest since its last one.
func (s *starts) endLocked() {
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
