// Package vigil notices when the first processes of boxes end, as soon as they do: the kernel tells by their pidfds. A box costs a
// goroutine and a descriptor, and no thread.
package vigil

import (
	"os"
	"sync"

	"boxgate/host/foreign"
	"boxgate/policy"
)

// Vigil knows whose end is waited for. The zero value waits for nobody's. Safe for concurrent use.
type Vigil struct {
	mu      sync.Mutex
	watched map[policy.BoxID]*os.File // guarded by mu
	closed  bool                      // guarded by mu
}

// Watch calls ended when the first process of a box has ended, in a goroutine of its own. It takes over the process's handle, a
// pidfd, and forgets one that the box had before.
func (v *Vigil) Watch(id policy.BoxID, process *os.File, ended func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		process.Close()
		return
	}
	if before := v.watched[id]; before != nil {
		before.Close()
	}
	if v.watched == nil {
		v.watched = map[policy.BoxID]*os.File{}
	}
	v.watched[id] = process
	go func() {
		foreign.AwaitEnd(process)
		if v.drop(id, process) {
			ended()
		}
	}()
}

// drop ends the watch on a process, and reports whether nobody else has.
func (v *Vigil) drop(id policy.BoxID, process *os.File) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.watched[id] != process {
		return false
	}
	delete(v.watched, id)
	process.Close()
	return true
}

// Close waits for nobody's end any more.
func (v *Vigil) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	for _, process := range v.watched {
		process.Close()
	}
	clear(v.watched)
}
