package rules

import (
	"sync"

	"boxgate/api"
	"boxgate/policy"
)

// mostShown is the number of effects of approvals that are kept for one box: of its open requests, and of some that were refused.
const mostShown = 64

// shown keeps the effects of approvals as they were computed, because each takes a compilation of a policy, and boxes and the people who
// answer ask for them again and again. They are valid for one compiled policy: whatever they depend on is compiled into it. A grant
// computes its effect anew. The zero value is empty. Safe for concurrent use.
type shown struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*shownOf
}

// shownOf are the effects under one policy of a box.
type shownOf struct {
	under   *policy.Compiled
	effects map[string]effect // by the entry
}

// effect is the result of computing the effect of an approval.
type effect struct {
	candidate api.Candidate
	err       error
}

// get returns an effect under a policy, if it was computed.
func (s *shown) get(id policy.BoxID, under *policy.Compiled, entry string) (effect, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.boxes[id]
	if of == nil || under == nil || of.under != under {
		return effect{}, false
	}
	e, ok := of.effects[entry]
	return e, ok
}

// put keeps an effect, and drops those of other policies and of boxes that no longer exist.
func (s *shown) put(id policy.BoxID, under *policy.Compiled, entry string, e effect, exists func(policy.BoxID) bool) {
	if under == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.boxes[id]
	if of == nil || of.under != under || len(of.effects) >= mostShown {
		for other := range s.boxes {
			if !exists(other) {
				delete(s.boxes, other)
			}
		}
		if s.boxes == nil {
			s.boxes = map[policy.BoxID]*shownOf{}
		}
		of = &shownOf{under, map[string]effect{}}
		s.boxes[id] = of
	}
	of.effects[entry] = e
}
