package audit

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"boxgate/policy"
)

// Options configure a [Log]. The zero value keeps events and counts them, and writes no log.
type Options struct {
	Logger       *zap.Logger   // one line per decision, with the message "decision"; nil: none
	AllowedLevel zapcore.Level // level of allowing decisions; the zero value is info. Denials are always at info
	PerBox       int           // events kept per box; 0: 256
	MaxBoxes     int           // boxes whose events are kept; 0: 4096. Above that, the box idle longest is forgotten
	Buffer       int           // events that a subscription buffers for a slow reader; 0: 2048
}

// Log is where every decision of the gateway goes: to the log, to what is remembered, to the subscriptions and to the
// metrics. Safe for concurrent use.
type Log struct {
	opts    Options
	metrics *metrics
	coal    coalescer

	selfTests selfTests

	id string

	mu        sync.Mutex
	seq       uint64 // of the latest event
	forgotten uint64 // of the latest event that was forgotten with its box
	boxes     map[policy.BoxID]*ring
	subs      map[*Subscription]struct{}
}

// New makes a log.
func New(opts Options) *Log {
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	opts.PerBox = cmp.Or(opts.PerBox, 256)
	opts.MaxBoxes = cmp.Or(opts.MaxBoxes, 4096)
	opts.Buffer = cmp.Or(opts.Buffer, 2048)
	l := &Log{
		opts: opts, metrics: newMetrics(), id: strings.ToLower(rand.Text()[:10]),
		boxes: map[policy.BoxID]*ring{}, subs: map[*Subscription]struct{}{},
	}
	l.coal = coalescer{emit: l.emit, boxes: map[policy.BoxID]*coalesced{}}
	return l
}

// Record records one decision. It never waits for a reader. An event without a time gets the current one. Repeated
// refusals of a box, and flows that the kernel forwards to one destination, are coalesced into one event per second
// with their count; the metrics count each at once.
func (l *Log) Record(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e = e.safe()
	l.selfTests.mark(&e)
	l.metrics.observe(e)
	if !coalesces(&e) || l.coal.admit(&e) {
		l.emit(e)
	}
}

// Flush emits the pending coalesced events. Call it before the process exits.
func (l *Log) Flush() { l.coal.flushAll() }

// emit passes an event, escaped and counted, to the readers and the log.
func (l *Log) emit(e Event) {
	if e.Destinations > 0 {
		l.metrics.unnamed.Add(float64(max(e.Count, 1)))
	}
	e.Seq = l.keep(e)
	level := zapcore.InfoLevel
	if e.Verdict == policy.Allow {
		level = l.opts.AllowedLevel
	}
	if line := l.opts.Logger.Check(level, "decision"); line != nil {
		line.Time = e.Time
		line.Write(zap.Inline(fields{&e}))
	}
}

// keep numbers the event, stores it and passes it to the subscriptions that want it.
func (l *Log) keep(e Event) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq = l.seq
	r := l.boxes[e.Box]
	if r == nil {
		l.makeRoomLocked()
		r = &ring{}
		l.boxes[e.Box] = r
	}
	r.add(e, l.opts.PerBox)
	for s := range l.subs {
		if s.filter.matches(e) && !s.offer(e) {
			l.metrics.lost.Inc()
		}
	}
	return e.Seq
}

// makeRoomLocked forgets the box that has been idle longest if the limit of boxes is reached.
func (l *Log) makeRoomLocked() {
	if len(l.boxes) < l.opts.MaxBoxes {
		return
	}
	var oldest policy.BoxID
	var at time.Time
	for id, r := range l.boxes {
		if at.IsZero() || r.last.Before(at) {
			oldest, at = id, r.last
		}
	}
	l.dropLocked(oldest)
}

func (l *Log) dropLocked(box policy.BoxID) {
	if r := l.boxes[box]; r != nil {
		l.forgotten = max(l.forgotten, r.newest.Seq)
		delete(l.boxes, box)
	}
}

// Forget emits the pending events of a box and drops its state.
func (l *Log) Forget(box policy.BoxID) {
	l.coal.flush(box)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(box)
}

// ID identifies this log among those of other runs of the gateway, which number their events on their own.
func (l *Log) ID() string { return l.id }

// Missing reports whether events that the filter selects may have been forgotten.
func (l *Log) Missing(f Filter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.forgotten > f.After {
		return true
	}
	for id, r := range l.boxes {
		if (f.Box == "" || f.Box == id) && r.forgotten > f.After {
			return true
		}
	}
	return false
}

// Recent returns the remembered events that the filter selects, in the order in which they were emitted.
func (l *Log) Recent(f Filter) []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Event
	for id, r := range l.boxes {
		if f.Box == "" || f.Box == id {
			out = r.appendMatching(out, f)
		}
	}
	slices.SortFunc(out, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return out
}

// Filter selects events. The zero value selects all.
type Filter struct {
	Box    policy.BoxID // "" for every box
	Since  time.Time    // events at or after it; zero: no limit
	After  uint64       // events with a greater number
	Denied bool         // only denials
}

func (f Filter) matches(e Event) bool {
	return (f.Box == "" || f.Box == e.Box) && !e.Time.Before(f.Since) && e.Seq > f.After && (!f.Denied || e.Verdict != policy.Allow)
}

// Subscribe delivers the events from now on that the filter selects, until ctx ends. A reader that does not keep up
// loses events; it never blocks anything.
func (l *Log) Subscribe(ctx context.Context, f Filter) *Subscription {
	s := &Subscription{filter: f, events: make(chan Event, l.opts.Buffer)}
	l.mu.Lock()
	l.subs[s] = struct{}{}
	l.mu.Unlock()
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.subs, s)
		close(s.events) // no offer can follow, because offers are made under mu
	})
	return s
}
