package enforce

import (
	"sync"

	"boxgate/policy"
)

// judged are the boxes whose forwarded connections are all ones that the policy in force forwards. A box is taken out
// before its policy changes, and added again once its connections have been judged: what a change that failed let through
// meanwhile is found by the next one. The zero value knows none. Safe for concurrent use.
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

// take takes the box out, and reports whether it was there.
func (j *judged) take(id policy.BoxID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.boxes[id]
	delete(j.boxes, id)
	return was
}
