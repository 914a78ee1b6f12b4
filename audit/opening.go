package audit

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"
)

// Phase says which part of a decision an event is about, if not the whole.
type Phase string

// The phases. Both events of a decision carry the same Conn.
const (
	// PhaseOpen is a decision whose traffic goes on. It counts as the decision.
	PhaseOpen Phase = "open"
	// PhaseEnd is the end of what an open event began, with bytes and duration. It is not a decision of its own, unless
	// it denies what was allowed.
	PhaseEnd Phase = "end"
	// PhaseOngoing is a connection that the gateway found in the kernel's table rather than saw begin. It is not a
	// decision of its own: it was counted when it began, unless the gateway was not running then.
	PhaseOngoing Phase = "ongoing"
)

// openAfter is how long traffic goes on before its decision is recorded without waiting for its end. If it ends
// earlier, there is one event.
const openAfter = 250 * time.Millisecond

// started is what the time of an [Opening] counts from: reading a time of day as well would cost twice as much.
var started = time.Now()

// Opening records a decision while its traffic is still going on, so that it is not lost if the gateway crashes. It can
// be reused for one decision after another. The zero value is ready to use; it is safe for concurrent use.
type Opening struct {
	mu      sync.Mutex
	to      Recorder
	event   *Event // as decided; nil once it has been recorded
	timer   *time.Timer
	armed   bool          // the timer runs, perhaps since an earlier decision: starting and stopping it for each would cost more
	waiting bool          // for due
	due     time.Duration // when the event is recorded, since started
	conn    string        // the Conn of the open event; empty if none has been recorded
}

// Begin records a copy of e, an allowing decision, with [PhaseOpen] unless End is called soon. The caller keeps e and
// records it when its traffic has ended, after [Opening.End].
func (o *Opening) Begin(to Recorder, e *Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn != "" {
		return // the same decision again, such as after a retry
	}
	if o.event == nil {
		o.event = new(Event)
	}
	*o.event = *e
	o.to, o.waiting, o.due = to, true, time.Since(started)+openAfter
	if !o.armed {
		o.armLocked(openAfter)
	}
}

func (o *Opening) armLocked(after time.Duration) {
	o.armed = true
	if o.timer == nil {
		o.timer = time.AfterFunc(after, o.open)
	} else {
		o.timer.Reset(after)
	}
}

// open records the decision that is waiting, unless the timer was started for an earlier one.
func (o *Opening) open() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.armed = false
	if !o.waiting {
		return
	}
	if left := o.due - time.Since(started); left > 0 {
		o.armLocked(left)
		return
	}
	o.waiting = false
	o.conn = strings.ToLower(rand.Text()[:12])
	e := *o.event
	e.Phase, e.Conn = PhaseOpen, o.conn
	o.to.Record(e)
	o.event, o.timer = nil, nil // what has gone on for this long may go on for hours
}

// End says that the traffic has ended, and prepares its event for recording: if the open event was recorded, e becomes
// the [PhaseEnd] of the decision, and its time that of the end.
func (o *Opening) End(e *Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = false
	if o.conn == "" {
		return
	}
	e.Phase, e.Conn, e.Time = PhaseEnd, o.conn, e.Time.Add(e.Duration)
	o.conn = ""
}
