package audit

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"log"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"boxgate/audit/lines"
	"boxgate/policy"
)

// Options configure a [Log]. The zero value keeps events and counts them, and writes no log.
type Options struct {
	Lines   *lines.Writer // receives one line per decision, with the message "decision"; may be nil
	History *lines.Writer // receives the same lines, always as JSON; may be nil
	// OnHistoryDrop is called when History had no space for a line about a box. It must not block or record. It may be nil.
	OnHistoryDrop func(policy.BoxID, time.Time)
	Exports       []Export // receive the lines as well
	// Observe receives every decision, before repeated ones are coalesced. It must not block or record. It may be nil.
	Observe  func(Event)
	Console  bool // lines for humans rather than JSON
	PerBox   int  // events kept per box; 0: 256
	MaxBoxes int  // boxes whose events are kept; 0: 4096. Beyond that, the box idle longest is forgotten
	// Name returns the name of a box, which may be "", and whether the box is known. The name of a known box never
	// changes. Name must not record. nil: boxes have no names.
	Name   func(policy.BoxID) (name string, known bool)
	Buffer int // events that a subscription buffers for a slow reader; 0: 2048
}

// Export is an additional receiver of the lines of decisions, as JSON.
type Export struct {
	Lines  *lines.Writer
	Denied bool // only denials
}

// lost returns the number of log lines lost.
func (o *Options) lost() uint64 {
	if o.Lines == nil {
		return 0
	}
	return o.Lines.Lost()
}

// Log receives every decision of the gateway and passes it to the log, the memory of recent events, the subscriptions
// and the metrics. Safe for concurrent use.
type Log struct {
	opts      Options
	metrics   *metrics
	coalescer coalescer

	selfTests selfTests

	id string

	mu        sync.Mutex
	seq       uint64 // of the latest event
	forgotten uint64 // of the latest event that was forgotten along with its box
	boxes     map[policy.BoxID]*ring
	recency   list.List // box IDs, the least recently active first
	encoder   encoder
	line      []byte // the latest event's JSON, if it has several receivers
	subs      map[*Subscription]struct{}
}

// New makes a log.
func New(opts Options) *Log {
	opts.PerBox = cmp.Or(opts.PerBox, 256)
	opts.MaxBoxes = cmp.Or(opts.MaxBoxes, 4096)
	opts.Buffer = cmp.Or(opts.Buffer, 2048)
	l := &Log{
		opts: opts, metrics: newMetrics(opts.lost), id: strings.ToLower(rand.Text()[:10]),
		boxes: map[policy.BoxID]*ring{}, subs: map[*Subscription]struct{}{},
	}
	l.coalescer = coalescer{emit: func(e *Event) { l.emit(e, e.isVerbatim()) }, boxes: map[policy.BoxID]*coalesced{}}
	return l
}

// Record records one decision. It never blocks on a reader, and retains no part of the event that the caller could
// change. An event without a time gets the current one. Repeated refusals of a box, and flows that the kernel forwards
// to one destination, are coalesced into one event per second with their count; the metrics count each immediately.
//
// The line of a refusal is written before Record returns if no line was written for a while and writing does not block;
// other lines are written within 10 ms (see [lines.Writer]).
func (l *Log) Record(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	name, path := e.Name, e.Path
	verbatim := e.escapeTexts()
	if !verbatim && (e.Name != name || e.Path != path) {
		e.Seen = Seen{} // a policy would judge other texts
	}
	l.selfTests.mark(&e)
	l.metrics.observe(&e)
	if l.opts.Observe != nil {
		l.opts.Observe(e)
	}
	e.Seen = Seen{} // holds parts of requests
	if coalesces(&e) {
		if !l.coalescer.admit(&e) {
			return
		}
		verbatim = e.isVerbatim() // admit may have changed the event
	}
	l.emit(&e, verbatim)
	if e.Verdict != policy.Allow && l.opts.Lines != nil {
		l.opts.Lines.Push()
	}
}

// Flush emits the pending coalesced events. Call it before the process exits.
func (l *Log) Flush() { l.coalescer.flushAll() }

// emit numbers an event that is already escaped and counted, and passes it to the memory, the matching subscriptions
// and the log, in the same order to all of them. verbatim is that of [encoder.append].
func (l *Log) emit(e *Event, verbatim bool) {
	if e.Destinations > 0 {
		l.metrics.unnamed.Add(float64(max(e.Count, 1)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq = l.seq
	r := l.ringLocked(e.Box)
	e.BoxName = l.nameLocked(r, e.Box)
	r.add(e, l.opts.PerBox)
	if e.Verdict != policy.Allow {
		r.denials.add(minuteOf(e.Time), max(e.Count, 1))
	}
	for s := range l.subs {
		if s.filter.matches(e) && !s.deliver(e) {
			l.metrics.lost.Inc()
		}
	}
	l.writeLocked(e, r, verbatim)
}

// nameLocked returns the name of a box, or "" if the name would have to be escaped in a line.
func (l *Log) nameLocked(r *ring, box policy.BoxID) string {
	if r.named || l.opts.Name == nil || box == "" {
		return r.name
	}
	r.name, r.named = l.opts.Name(box)
	if !isVerbatim(r.name, maxText, '!') {
		r.name = ""
	}
	return r.name
}

// writeLocked appends the line of an event to the log, the history and the exports. If one of them is written too
// slowly, cheap events leave space for the others, and each box for other boxes. A line that several receivers share is
// encoded once.
func (l *Log) writeLocked(e *Event, r *ring, verbatim bool) {
	o, room := &l.opts, bufferQuarters(weightOf(e))
	if o.Lines != nil && (o.Console || o.History == nil && len(o.Exports) == 0) {
		encode := func(b []byte) []byte { return l.encoder.append(b, e, verbatim, o.Console) }
		o.Lines.Append(encode, lines.Reservation{Quarters: room, By: &r.logShare})
	}
	if o.History == nil && len(o.Exports) == 0 {
		return
	}
	l.line = l.encoder.append(l.line[:0], e, verbatim, false)
	again := func(b []byte) []byte { return append(b, l.line...) }
	if o.Lines != nil && !o.Console {
		o.Lines.Append(again, lines.Reservation{Quarters: room, By: &r.logShare})
	}
	if o.History != nil {
		kept := o.History.Append(again, lines.Reservation{Quarters: room, By: &r.historyShare})
		if !kept && o.OnHistoryDrop != nil {
			o.OnHistoryDrop(e.Box, e.Time)
		}
	}
	if r.exportShares == nil && len(o.Exports) > 0 {
		r.exportShares = make([]lines.Share, len(o.Exports))
	}
	for i, to := range o.Exports {
		if !to.Denied || e.Verdict != policy.Allow {
			to.Lines.Append(again, lines.Reservation{Quarters: room, By: &r.exportShares[i]})
		}
	}
}

// bufferQuarters returns how many quarters of a buffer events of a weight may fill, so that a burst of cheap events
// does not displace more important ones.
func bufferQuarters(w weight) int {
	switch w {
	case heavy:
		return 4
	case middle:
		return 3
	default:
		return 2
	}
}

// ringLocked returns the events of a box that gets a new event, and creates them if needed.
func (l *Log) ringLocked(box policy.BoxID) *ring {
	r := l.boxes[box]
	if r != nil {
		l.recency.MoveToBack(r.element)
		return r
	}
	if len(l.boxes) >= l.opts.MaxBoxes {
		l.dropLocked(l.recency.Front().Value.(policy.BoxID))
	}
	r = &ring{element: l.recency.PushBack(box)}
	l.boxes[box] = r
	return r
}

func (l *Log) dropLocked(box policy.BoxID) {
	if r := l.boxes[box]; r != nil {
		l.forgotten = max(l.forgotten, r.latest.Seq)
		l.recency.Remove(r.element)
		delete(l.boxes, box)
	}
}

// Forget emits the pending events of a box and drops its state.
func (l *Log) Forget(box policy.BoxID) {
	l.coalescer.flush(box)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(box)
}

// ID identifies this run's log: every run of the gateway numbers its events from 1.
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
	Since  time.Time    // at or after this time; zero: no limit
	After  uint64       // with a greater Seq
	Denied bool         // only denials
}

func (f *Filter) matches(e *Event) bool {
	return (f.Box == "" || f.Box == e.Box) && !e.Time.Before(f.Since) && e.Seq > f.After && (!f.Denied || e.Verdict != policy.Allow)
}

// Subscribe delivers future events that the filter selects until ctx ends. A reader that does not keep up loses events;
// it never blocks the log.
func (l *Log) Subscribe(ctx context.Context, f Filter) *Subscription {
	s := &Subscription{filter: f, events: make(chan Event, l.opts.Buffer)}
	l.mu.Lock()
	l.subs[s] = struct{}{}
	l.mu.Unlock()
	context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.subs, s)
		close(s.events) // deliveries need mu, so no more can follow
	})
	return s
}

// Subscription is one reader of the events, made by [Log.Subscribe].
type Subscription struct {
	filter Filter
	events chan Event
	lost   atomic.Uint64
}

// Events returns the channel of events, in the order they were recorded. It is closed when the context of the
// subscription ends.
func (s *Subscription) Events() <-chan Event { return s.events }

// Lost returns the number of events that this reader has lost because it was too slow.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// deliver delivers a copy of e if the buffer has space, and reports whether it had.
func (s *Subscription) deliver(e *Event) bool {
	room := cap(s.events) * bufferQuarters(weightOf(e)) / 4
	if len(s.events) >= max(room, 1) {
		s.lost.Add(1)
		return false
	}
	own := *e
	own.Headers = slices.Clone(e.Headers)
	select {
	case s.events <- own:
		return true
	default:
		s.lost.Add(1)
		return false
	}
}

// The maximum rate per second, and burst, of lines from a net/http server.
const (
	serverLines     = 5
	serverLineBurst = 50
)

// ServerLog returns an error log for an [net/http.Server]. Anyone who can reach the server can cause lines in it, so
// their rate is bounded; the next line written includes the number of dropped ones. take, if not nil, is called first
// for each line and reports whether it has handled it.
func ServerLog(to *zap.Logger, take func(line string) bool) *log.Logger {
	return log.New(&serverLog{to: to, handled: take, limiter: rate.NewLimiter(serverLines, serverLineBurst)}, "", 0)
}

type serverLog struct {
	to      *zap.Logger
	handled func(line string) bool
	limiter *rate.Limiter

	mu      sync.Mutex
	skipped uint64
}

// Write writes one line.
func (l *serverLog) Write(b []byte) (int, error) {
	line := string(bytes.TrimRight(b, "\n"))
	if l.handled != nil && l.handled(line) {
		return len(b), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.limiter.Allow() {
		l.skipped++
		return len(b), nil
	}
	l.to.Warn("HTTP server", zap.String("message", Escape(line, maxText)), zap.Uint64("skipped_before", l.skipped))
	l.skipped = 0
	return len(b), nil
}

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
