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

// ExpectSelfTest marks expected denials of a box as caused by a self-test, at most Count for each entry, until end is
// called. The box cannot hide its own denials: if it copies an expected one, its event may get the mark, and the event
// of the self-test is logged unmarked instead.
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
