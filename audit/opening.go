package audit

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"
)

// Phase is the part of a decision that an event is about, if not the whole.
type Phase string

// The phases. Both events of a decision carry the same Conn.
const (
	// PhaseOpen is a decision whose traffic continues. It counts as the decision.
	PhaseOpen Phase = "open"
	// PhaseEnd is the end of traffic that an open event began, with bytes and duration. It does not count as a
	// decision, unless it denies traffic that was allowed.
	PhaseEnd Phase = "end"
	// PhaseOngoing is a connection that the gateway found in the kernel's table instead of seeing it begin. It does not
	// count as a decision: it was counted when it began, unless the gateway was not running then.
	PhaseOngoing Phase = "ongoing"
)

// openAfter is how long traffic continues before its decision is recorded without waiting for the end. Shorter traffic
// has a single event.
const openAfter = 250 * time.Millisecond

// started is the epoch of Opening.due: reading the time of day in addition would cost twice as much.
var started = time.Now()

// Opening records a decision while its traffic continues, so that it is not lost if the gateway crashes. It can be
// reused for later decisions. The zero value is ready to use. Safe for concurrent use.
type Opening struct {
	mu       sync.Mutex
	recorder Recorder
	event    *Event // as decided; nil: already recorded
	timer    *time.Timer
	armed    bool          // the timer runs, perhaps since an earlier decision: restarting it for each would cost more
	waiting  bool          // for due
	due      time.Duration // when to record the event, since started
	conn     string        // Conn of the open event; empty: not recorded
}

// Begin records a copy of e, an allowing decision, with [PhaseOpen] unless End is called within openAfter. When the
// traffic has ended, the caller calls [Opening.End] and then records e itself.
func (o *Opening) Begin(to Recorder, e *Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conn != "" {
		return // the same decision, such as after a retry
	}
	if o.event == nil {
		o.event = new(Event)
	}
	*o.event = *e
	o.recorder, o.waiting, o.due = to, true, time.Since(started)+openAfter
	if !o.armed {
		o.armLocked(openAfter)
	}
}

func (o *Opening) armLocked(after time.Duration) {
	o.armed = true
	if o.timer == nil {
		o.timer = time.AfterFunc(after, o.recordOpen)
	} else {
		o.timer.Reset(after)
	}
}

// recordOpen records the waiting decision, or restarts the timer if it was started for an earlier one.
func (o *Opening) recordOpen() {
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
	o.recorder.Record(e)
	o.event, o.timer = nil, nil // free the memory: traffic this old may continue for hours
}

// End prepares the event of traffic that has ended for recording: if the open event was recorded, e becomes the
// [PhaseEnd] of the decision, with the time of the end.
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
