package enforce

import (
	"sync"

	"boxgate/policy"
)

// judged is the set of boxes whose forwarded connections are all known to be forwarded by the current policy. A box is
// removed before its policy changes, and added again once its connections have been checked. After a failed change the
// box is missing, so the next change checks for connections that were accepted in between. The zero value is empty. Safe
// for concurrent use.
type judged struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]bool
}

func (j *judged) add(id policy.BoxID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.boxes == nil {
		j.boxes = map[policy.BoxID]bool{}
	}
	j.boxes[id] = true
}

// remove removes the box, and reports whether it was in the set.
func (j *judged) remove(id policy.BoxID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.boxes[id]
	delete(j.boxes, id)
	return was
}
