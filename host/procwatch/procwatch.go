// Package procwatch detects the end of boxes' first processes immediately, by their pidfds. Each box costs a goroutine and a
// descriptor, but no thread.
package procwatch

import (
	"os"
	"sync"

	"boxgate/host/sandboxns"
	"boxgate/policy"
)

// Watcher watches processes. The zero value is ready to use. Safe for concurrent use.
type Watcher struct {
	mu      sync.Mutex
	watched map[policy.BoxID]*os.File // guarded by mu
	closed  bool                      // guarded by mu
}

// Watch calls ended in a new goroutine when the first process of a box has ended. It takes ownership of process, a pidfd,
// and stops watching an earlier process of the box.
func (v *Watcher) Watch(id policy.BoxID, process *os.File, ended func()) {
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
		sandboxns.AwaitEnd(process)
		if v.drop(id, process) {
			ended()
		}
	}()
}

// drop stops watching a process. It reports false if it was already replaced or dropped.
func (v *Watcher) drop(id policy.BoxID, process *os.File) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.watched[id] != process {
		return false
	}
	delete(v.watched, id)
	process.Close()
	return true
}

// Close stops watching all processes.
func (v *Watcher) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	for _, process := range v.watched {
		process.Close()
	}
	clear(v.watched)
}
