package audit

import (
	"sync"
	"sync/atomic"

	"boxgate/policy"
)

// Expected describes denials that a self-test is about to cause in a box.
type Expected struct {
	Match func(Event) bool
	Count int // maximum number of events that it claims
}

// selfTests marks the denials that a self-test announced. Only one self-test runs at a time.
type selfTests struct {
	current atomic.Pointer[selfTest]
}

type selfTest struct {
	box policy.BoxID

	mu       sync.Mutex
	expected []Expected
}

// ExpectSelfTest marks denials of a box as those of a self-test until end is called, at most Count for each entry. The
// box's own denials during that time are still logged unmarked in the same number: if the box copies an expected
// denial, its event may take the mark, and the self-test's event is unmarked instead.
func (l *Log) ExpectSelfTest(box policy.BoxID, expected []Expected) (end func()) {
	t := &selfTest{box: box, expected: append([]Expected(nil), expected...)}
	l.selfTests.current.Store(t)
	return func() { l.selfTests.current.CompareAndSwap(t, nil) }
}

// mark marks the event if it was announced.
func (s *selfTests) mark(e *Event) {
	t := s.current.Load()
	e.SelfTest = t != nil && t.box == e.Box && e.Verdict != policy.Allow && e.Phase == "" && e.Count <= 1 && t.claim(e)
}

func (t *selfTest) claim(e *Event) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.expected {
		if x := &t.expected[i]; x.Count > 0 && x.Match(*e) {
			x.Count--
			return true
		}
	}
	return false
}
