package audit

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"
)

// Phase says which part of a decision an event tells, where one event does not tell all of it.
type Phase string

// The phases. Both events of a decision carry the same Conn.
const (
	// PhaseOpen is a decision whose traffic goes on. It counts as the decision.
	PhaseOpen Phase = "open"
	// PhaseEnd is the end of what an open event told of, with bytes and duration. It is no decision of its own, unless it
	// denies what was allowed.
	PhaseEnd Phase = "end"
	// PhaseOngoing is a connection that the gateway found in the kernel's table rather than saw begin. It is no decision of
	// its own: it was counted when it began, unless that was while the gateway did not run.
	PhaseOngoing Phase = "ongoing"
)

// openAfter is how long traffic goes on before its decision is told without waiting for its end. What ends earlier is one
// event.
const openAfter = 250 * time.Millisecond

// Opening tells of a decision while its traffic goes on, so that it is not lost if the gateway is. It can be used again,
// for one decision after the other. The zero value is ready; it is safe for concurrent use.
type Opening struct {
	mu      sync.Mutex
	to      Recorder
	event   Event // as it was decided
	timer   *time.Timer
	waiting bool   // for openAfter to pass
	told    string // the Conn of the open event, once that was recorded
}

// Begin has e, an allowing decision, recorded with [PhaseOpen] if End is not called soon. The caller keeps e and records it
// when its traffic has ended, after [Opening.End].
func (o *Opening) Begin(to Recorder, e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told != "" {
		return // the same decision once more, such as after a second try
	}
	o.to, o.event, o.waiting = to, e, true
	if o.timer == nil {
		o.timer = time.AfterFunc(openAfter, o.tell)
	} else {
		o.timer.Reset(openAfter)
	}
}

// tell may come late, when the next decision waits already: then that one is told early, which does no harm.
func (o *Opening) tell() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.waiting {
		return
	}
	o.waiting = false
	o.told = strings.ToLower(rand.Text()[:12])
	e := o.event
	e.Phase, e.Conn = PhaseOpen, o.told
	o.to.Record(e)
}

// End says that the traffic has ended, and how its event is to be recorded: e becomes the [PhaseEnd] of the decision if
// that was told, at the time of its end, which is its duration after its beginning.
func (o *Opening) End(e *Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting {
		o.waiting = false
		o.timer.Stop()
	}
	if o.told == "" {
		return
	}
	e.Phase, e.Conn, e.Time = PhaseEnd, o.told, e.Time.Add(e.Duration)
	o.told = ""
}
