// Package lines writes the lines of a log in batches. Whoever logs never waits for the file, pipe or socket behind it:
// what that does not take is kept up to a limit, and beyond it dropped and counted.
//
// The lines appear in the order in which they were added, and each write(2) holds whole lines. A line is written within
// 10 ms of being added, and earlier if asked for ([Writer.Push], [Writer.Write], [Writer.Sync]). Until then it is in the
// memory of the process and lost if that is killed.
package lines

import (
	"errors"
	"sync"
	"time"
)

const (
	// interval is how long a line waits for others. It leaves the scheduler as long again to keep the promised 10 ms.
	interval = 5 * time.Millisecond
	// batch is how many bytes are written without waiting for more.
	batch = 64 << 10
	// limit is how many bytes may be pending.
	limit = 4 << 20
	// kept is the largest buffer that is kept for later.
	kept = 4 * batch
	// retry is how long to wait after a failed write.
	retry = time.Second
	// patience is how long Sync waits for a sink that blocks.
	patience = 2 * time.Second
)

// errBlocked is returned by [Writer.Sync] when the sink does not take what is pending.
var errBlocked = errors.New("the log is not being read; its last lines are lost")

// Writer writes lines to a sink. It is a zapcore.WriteSyncer. Safe for concurrent use.
type Writer struct {
	to Sink

	mu      sync.Mutex
	pending []byte    // whole lines, but for the first one after a failed write
	spare   []byte    // empty, for the next batch
	batch   uint64    // number of the batch that is pending
	writing bool      // a batch is being written
	inWrite int       // its bytes, which come back if the write fails
	urgent  bool      // what is pending is to be written as soon as possible
	failing bool      // the last write failed
	last    time.Time // when the last write ended
	timer   *time.Timer
	waiting []chan<- error // for what is pending to be written

	lost, unsaid uint64
	say          func(lost uint64)
}

// New returns a writer to the sink.
func New(to Sink) *Writer { return &Writer{to: to} }

// OnLost sets what is called, after lines were lost, as soon as lines can be written again. It may log through w. Call
// OnLost before anything is added.
func (w *Writer) OnLost(say func(lost uint64)) { w.say = say }

// Lost returns how many lines were dropped so far.
func (w *Writer) Lost() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Pending returns how many bytes wait to be written, and how many may.
func (w *Writer) Pending() (bytes, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending), limit
}

// Share is what one source of lines has pending. The zero value is ready to use, with one writer.
type Share struct {
	batch uint64
	bytes int
}

// Claim says what a line may take of the buffer when the sink is slow.
type Claim struct {
	Quarters int    // of the buffer; 0 means all four
	By       *Share // may have no more of that than it leaves to others; nil: all of it
}

// Add adds a line, with its newline, and reports whether there was room for it. It does not write.
func (w *Writer) Add(line []byte, c Claim) bool {
	return w.Append(func(b []byte) []byte { return append(b, line...) }, c)
}

// Append is Add for the line that encode appends to a buffer. encode must not use w, nor keep the buffer.
func (w *Writer) Append(encode func([]byte) []byte, c Claim) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := len(w.pending)
	all := encode(w.pending)
	w.pending = all[:before] // if it grew, it does not have to for the next line that there is no room for
	if !w.claim(len(all)-before, c) {
		w.lost++
		w.unsaid++
		return false
	}
	w.pending = all
	w.added(before)
	return true
}

// claim reports whether there is room for n more bytes, and if so counts them.
func (w *Writer) claim(n int, c Claim) bool {
	room := limit
	if c.Quarters > 0 {
		room = limit / 4 * c.Quarters
	}
	if w.failing {
		room -= w.inWrite // which is likely to come back
	}
	if room -= len(w.pending); n > room {
		return false
	}
	if c.By == nil {
		return true
	}
	if c.By.batch != w.batch {
		*c.By = Share{batch: w.batch}
	}
	if c.By.bytes+n > room {
		return false
	}
	c.By.bytes += n
	return true
}

// added sees to it that a line will be written. Before it, so many bytes were pending.
func (w *Writer) added(before int) {
	switch {
	case w.writing || w.failing: // whoever writes goes on with it
	case before < batch && len(w.pending) >= batch:
		w.wake(0)
	case before == 0:
		w.wake(interval)
	}
}

// wake sets the timer to write what is pending.
func (w *Writer) wake(after time.Duration) {
	if w.timer == nil {
		w.timer = time.AfterFunc(after, w.tick)
	} else {
		w.timer.Reset(after)
	}
}

// tick writes what is pending and says what was lost.
func (w *Writer) tick() {
	w.mu.Lock()
	if !w.writing && len(w.pending) > 0 {
		w.flush(w.write)
	}
	w.mu.Unlock()
	w.sayLost()
}

func (w *Writer) write(b []byte) (int, bool, error) {
	n, err := w.to.Write(b)
	return n, true, err
}

// Push writes what is pending if the log was idle before, unless that would block.
func (w *Writer) Push() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) > 0 && !w.writing && !w.failing && time.Since(w.last) >= interval {
		w.flush(w.to.TryWrite)
	}
}

// Write adds a line and writes all that is pending, unless that would block: then it is written as soon as possible.
// There is no error that the caller would have to handle.
func (w *Writer) Write(line []byte) (int, error) {
	if !w.Add(line, Claim{}) {
		return len(line), nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing {
		w.urgent = true
	} else if !w.failing && len(w.pending) > 0 {
		w.flush(w.to.TryWrite)
	}
	return len(line), nil
}

// Sync writes what was added before, and returns when it has been written, could not be, or the sink blocks too long.
func (w *Writer) Sync() error {
	w.mu.Lock()
	if len(w.pending) == 0 && !w.writing {
		w.mu.Unlock()
		return nil
	}
	done := make(chan error, 1)
	w.waiting = append(w.waiting, done)
	w.urgent = true
	if !w.writing {
		w.wake(0)
	}
	w.mu.Unlock()
	select {
	case err := <-done:
		w.sayLost()
		return err
	case <-time.After(patience):
		return errBlocked
	}
}

// flush writes what is pending. mu is held, but released while it writes.
func (w *Writer) flush(write func([]byte) (n int, ok bool, err error)) {
	b, waiting := w.pending, w.waiting
	w.pending, w.spare, w.waiting = w.spare, nil, nil
	if !w.failing { // what is tried again is still there, and counts in the shares
		w.batch++
	}
	w.writing, w.inWrite, w.urgent = true, len(b), false
	began := time.Now()
	w.mu.Unlock()
	n, ok, err := write(b)
	w.mu.Lock()
	w.writing, w.inWrite, w.failing, w.last = false, 0, err != nil, time.Now()
	if !ok {
		w.putBack(b, 0)
		w.waiting, w.urgent = append(waiting, w.waiting...), true
		w.wake(0)
		return
	}
	w.putBack(b, n)
	if len(w.pending) == 0 { // who began to wait during the write waits for nothing else
		waiting, w.waiting = append(waiting, w.waiting...), nil
	}
	for _, done := range waiting {
		done <- err
	}
	w.again(began)
}

// putBack puts what was not written of a batch, all but n bytes, in front of what is pending. It keeps the other buffer.
func (w *Writer) putBack(b []byte, n int) {
	w.spare = b[:0]
	if n < len(b) {
		w.pending, w.spare = append(b[n:], w.pending...), w.pending[:0]
	}
	if cap(w.spare) > kept {
		w.spare = nil
	}
}

// again sees to it that what was added since a write began will be written.
func (w *Writer) again(began time.Time) {
	switch {
	case w.failing:
		w.wake(retry)
	case len(w.pending) == 0 && w.unsaid == 0:
		w.timer.Stop()
	case w.urgent || w.unsaid > 0 || len(w.pending) >= batch:
		w.wake(0)
	default:
		w.wake(max(interval-w.last.Sub(began), 0))
	}
}

// sayLost says how many lines were lost since it last did, if lines can be written again.
func (w *Writer) sayLost() {
	w.mu.Lock()
	n := w.unsaid
	if n == 0 || w.failing || w.writing || w.say == nil {
		w.mu.Unlock()
		return
	}
	w.unsaid = 0
	w.mu.Unlock()
	w.say(n)
}
