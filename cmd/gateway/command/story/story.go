// Package story joins the decisions about one request for people: the look-ups of A and AAAA, and the connection that follows,
// become one decision.
package story

import (
	"net/netip"
	"sync"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

// How long after a look-up the decision about its connection is expected. In a log it costs nothing to wait for a server that
// does not answer.
const (
	livePatience = time.Second
	logPatience  = 15 * time.Second
)

// maxHeld bounds the decisions that wait, since boxes choose the names. Beyond that the oldest is passed on.
const maxHeld = 256

// Joiner passes decisions on, except look-ups that another decision covers. It holds a look-up until a connection to the
// name takes its place, or none did for a while. Safe for concurrent use; emit is called by one goroutine at a time.
type Joiner struct {
	emit     func(audit.Event)
	live     bool // decisions arrive as they happen; they are passed on before earlier look-ups that wait
	patience time.Duration

	mu       sync.Mutex
	held     []waiting         // oldest first; the first one is a look-up. In a log, later decisions wait behind it
	named    map[string]string // names of connections in the kernel, by conn
	followed map[subject]followed
	timer    *time.Timer
}

// waiting is a decision that waits.
type waiting struct {
	audit.Event
	other netip.Addr // of a look-up: the address of the other family
}

// subject is what a look-up and its connection have in common.
type subject struct {
	box  policy.BoxID
	name string
}

// followed is the last connection to a name: its look-up of the other family may be answered later.
type followed struct {
	at      time.Time
	verdict policy.Verdict
}

// New returns a joiner that passes decisions to emit. live is set if they arrive as they happen, not from a log.
func New(live bool, emit func(audit.Event)) *Joiner {
	j := &Joiner{emit: emit, live: live, patience: logPatience, followed: map[subject]followed{}, named: map[string]string{}}
	if live {
		j.patience = livePatience
	}
	return j
}

// Add adds a decision. Decisions must be added in the order of the log.
func (j *Joiner) Add(e audit.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.releaseLocked(e.Time.Add(-j.patience))
	j.nameLocked(&e)
	of := subject{e.Box, e.Name}
	if !isLookup(&e) {
		if e.Name != "" {
			j.followLocked(of, followed{e.Time, e.Verdict})
		}
		if j.live || len(j.held) == 0 {
			j.emit(e)
			return
		}
		j.holdLocked(e)
		return
	}
	if by, ok := j.followed[of]; ok && isCoveredBy(by.verdict, &e) && !e.Time.After(by.at.Add(livePatience)) {
		return
	}
	for i := range j.held {
		h := &j.held[i]
		if h.Name == e.Name && h.Box == e.Box && isLookup(&h.Event) && h.Verdict == e.Verdict && h.Reason == e.Reason && h.RCode == e.RCode {
			if h.other = e.Addr; e.Method == "A" && h.Method != "A" { // of two families, the more common one
				h.other, h.Method, h.Addr, h.Rule = h.Addr, e.Method, e.Addr, e.Rule
			}
			return
		}
	}
	j.holdLocked(e)
	if j.live && j.timer == nil {
		j.timer = time.AfterFunc(j.patience, j.expire)
	}
}

// nameLocked gives an allowed connection in the kernel, where only its address is known, the name that was just looked up, if
// it is one name alone.
func (j *Joiner) nameLocked(e *audit.Event) {
	if e.Stage != policy.StageKernel || e.Name != "" || e.Verdict != policy.Allow || !e.Addr.IsValid() {
		return
	}
	if e.Name = j.named[e.Conn]; e.Name != "" {
		delete(j.named, e.Conn)
		return
	}
	for i := range j.held {
		h := &j.held[i]
		if h.Box != e.Box || !isLookup(&h.Event) || h.Verdict != policy.Allow || h.Addr != e.Addr && h.other != e.Addr {
			continue
		}
		if e.Name != "" && e.Name != h.Name {
			e.Name = ""
			return
		}
		e.Name = h.Name
	}
	if e.Name != "" && e.Conn != "" && e.Phase != audit.PhaseEnd && len(j.named) < maxHeld {
		j.named[e.Conn] = e.Name
	}
}

// isLookup reports whether a decision is about a look-up of the kind that precedes connections. Others, such as TXT, are requests
// of their own.
func isLookup(e *audit.Event) bool {
	return e.Stage == policy.StageDNS && e.Name != "" && (e.Method == "A" || e.Method == "AAAA" || e.Method == "HTTPS")
}

func (j *Joiner) holdLocked(e audit.Event) {
	if len(j.held) >= maxHeld {
		j.emit(j.held[0].Event)
		j.held = j.held[1:]
		j.releaseLocked(time.Time{})
	}
	j.held = append(j.held, waiting{Event: e})
}

// Flush passes on what still waits. Call it after the last decision.
func (j *Joiner) Flush() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.timer != nil {
		j.timer.Stop()
		j.timer = nil
	}
	for _, h := range j.held {
		j.emit(h.Event)
	}
	j.held = nil
}

// isCoveredBy reports whether a connection with this verdict makes a look-up redundant. A refused look-up before an allowed
// connection does not become redundant: another family was refused, or the policy has changed.
func isCoveredBy(by policy.Verdict, lookup *audit.Event) bool {
	return lookup.RCode == "" && (lookup.Verdict == policy.Allow || by == policy.Deny)
}

// followLocked drops the look-ups of a connection.
func (j *Joiner) followLocked(of subject, by followed) {
	kept := j.held[:0]
	for i := range j.held {
		if h := &j.held[i]; h.Name != of.name || h.Box != of.box || !isLookup(&h.Event) || !isCoveredBy(by.verdict, &h.Event) {
			kept = append(kept, *h)
		}
	}
	j.held = kept
	j.releaseLocked(time.Time{})
	if len(j.followed) >= maxHeld {
		for s, f := range j.followed {
			if f.at.Before(by.at.Add(-livePatience)) {
				delete(j.followed, s)
			}
		}
	}
	if len(j.followed) < maxHeld {
		j.followed[of] = by
	}
}

// releaseLocked passes on the look-ups from before a time, and what waited behind them.
func (j *Joiner) releaseLocked(before time.Time) {
	for len(j.held) > 0 && (!isLookup(&j.held[0].Event) || j.held[0].Time.Before(before)) {
		j.emit(j.held[0].Event)
		j.held = j.held[1:]
	}
}

// expire passes on the look-ups whose patience is over by this host's clock.
func (j *Joiner) expire() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.timer == nil { // Flush was called
		return
	}
	j.timer = nil
	j.releaseLocked(time.Now().Add(-j.patience))
	if len(j.held) > 0 {
		j.timer = time.AfterFunc(j.patience/4, j.expire)
	}
}
