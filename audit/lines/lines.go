// Package lines writes the lines of a log in batches. Callers never wait for the file, pipe or socket: lines that it
// does not accept are buffered up to a limit, and beyond that dropped and counted.
//
// Lines appear in the order in which they were added, and each write(2) contains whole lines. A line is written within
// 10 ms, or earlier on request ([Writer.Push], [Writer.Write], [Writer.Sync]). Until then it is only in memory and lost
// if the process is killed.
package lines

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// interval is how long a line waits for others. It leaves the scheduler another 2 ms to keep the promised 10 ms.
	interval = 8 * time.Millisecond
	// idleAfter is how long after its last write a log is idle, see [Writer.Push].
	idleAfter = 5 * time.Millisecond
	// batch is the number of pending bytes that are written without waiting for more.
	batch = 64 << 10
	// limit is the maximum number of pending bytes.
	limit = 4 << 20
	// maxSpare is the capacity of the largest buffer that is reused.
	maxSpare = 4 * batch
	// retry is how long to wait after a failed write.
	retry = time.Second
	// syncTimeout is how long Sync waits for a sink that blocks.
	syncTimeout = 2 * time.Second
)

// errBlocked is returned by [Writer.Sync] if the sink does not accept the pending lines.
var errBlocked = errors.New("the log is not being read; its last lines are lost")

// Writer writes lines to a sink. It is a zapcore.WriteSyncer. Safe for concurrent use.
type Writer struct {
	sink Sink

	mu           sync.Mutex
	pending      []byte    // whole lines, except for the first one after a failed write
	spare        []byte    // empty, for the next batch
	batch        uint64    // number of the pending batch
	writing      bool      // a batch is being written
	writingBytes int       // bytes being written, which come back if the write fails
	urgent       bool      // write the pending lines as soon as possible
	failing      bool      // the last write failed
	lastWrite    time.Time // when the last write ended
	timer        *time.Timer
	syncers      []chan<- error // callers of Sync waiting for the pending lines

	lost, unreported uint64
	reportLost       func(lost uint64)
}

// New returns a writer to the sink.
func New(to Sink) *Writer { return &Writer{sink: to} }

// OnLost sets a function that is called with the number of lines lost, once lines can be written again. It may log
// through w. Call OnLost before adding lines.
func (w *Writer) OnLost(say func(lost uint64)) { w.reportLost = say }

// Lost returns the number of lines dropped so far.
func (w *Writer) Lost() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Pending returns the number of pending bytes and its maximum.
func (w *Writer) Pending() (bytes, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending), limit
}

// Share counts the pending bytes of one source of lines. The zero value is ready to use. Use it with one writer only.
type Share struct {
	batch uint64
	bytes int
}

// Reservation limits the part of the buffer that a line may use when the sink is slow.
type Reservation struct {
	Quarters int    // of the buffer; 0 means all four
	By       *Share // its source, which may have no more bytes pending than are free; nil: no such limit
}

// Add adds a line, which includes its newline, and reports whether the buffer had space for it. It does not write.
func (w *Writer) Add(line []byte, c Reservation) bool {
	return w.Append(func(b []byte) []byte { return append(b, line...) }, c)
}

// Append is Add for the line that encode appends to a buffer. encode must not use w or retain the buffer.
func (w *Writer) Append(encode func([]byte) []byte, c Reservation) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := len(w.pending)
	all := encode(w.pending)
	w.pending = all[:before] // keeps a grown buffer even if the line is dropped
	if !w.reserve(len(all)-before, c) {
		w.lost++
		w.unreported++
		return false
	}
	w.pending = all
	w.scheduleAdded(before)
	return true
}

// reserve reports whether n more bytes fit, and if so counts them.
func (w *Writer) reserve(n int, c Reservation) bool {
	room := limit
	if c.Quarters > 0 {
		room = limit / 4 * c.Quarters
	}
	if w.failing {
		room -= w.writingBytes // likely to come back
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

// scheduleAdded arranges that the added lines will be written. before is the number of bytes that were pending earlier.
func (w *Writer) scheduleAdded(before int) {
	switch {
	case w.writing || w.failing: // the current write or retry continues with it
	case before < batch && len(w.pending) >= batch:
		w.schedule(0)
	case before == 0:
		w.schedule(interval)
	}
}

// schedule sets the timer to write the pending lines.
func (w *Writer) schedule(after time.Duration) {
	if w.timer == nil {
		w.timer = time.AfterFunc(after, w.tick)
	} else {
		w.timer.Reset(after)
	}
}

// tick writes the pending lines and reports losses.
func (w *Writer) tick() {
	w.mu.Lock()
	if !w.writing && len(w.pending) > 0 {
		w.flush(w.write)
	}
	w.mu.Unlock()
	w.reportLosses()
}

func (w *Writer) write(b []byte) (int, bool, error) {
	n, err := w.sink.Write(b)
	return n, true, err
}

// Push writes the pending lines if the log was idle before, unless that would block.
func (w *Writer) Push() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) > 0 && !w.writing && !w.failing && time.Since(w.lastWrite) >= idleAfter {
		w.flush(w.sink.TryWrite)
	}
}

// Write adds a line and writes all pending lines, or if that would block, arranges for it as soon as possible. It never
// returns an error.
func (w *Writer) Write(line []byte) (int, error) {
	if !w.Add(line, Reservation{}) {
		return len(line), nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing {
		w.urgent = true
	} else if !w.failing && len(w.pending) > 0 {
		w.flush(w.sink.TryWrite)
	}
	return len(line), nil
}

// Sync writes all lines added before. It returns when they are written or the write failed, or if the sink blocks for
// longer than patience.
func (w *Writer) Sync() error {
	w.mu.Lock()
	if len(w.pending) == 0 && !w.writing {
		w.mu.Unlock()
		return nil
	}
	done := make(chan error, 1)
	w.syncers = append(w.syncers, done)
	w.urgent = true
	if !w.writing {
		w.schedule(0)
	}
	w.mu.Unlock()
	select {
	case err := <-done:
		w.reportLosses()
		return err
	case <-time.After(syncTimeout):
		return errBlocked
	}
}

// flush writes the pending lines. mu must be held; flush unlocks it while it writes.
func (w *Writer) flush(write func([]byte) (n int, ok bool, err error)) {
	b, waiting := w.pending, w.syncers
	w.pending, w.spare, w.syncers = w.spare, nil, nil
	if !w.failing { // a retried batch is still pending and counted in the shares
		w.batch++
	}
	w.writing, w.writingBytes, w.urgent = true, len(b), false
	began := time.Now()
	w.mu.Unlock()
	n, ok, err := write(b)
	w.mu.Lock()
	w.writing, w.writingBytes, w.failing, w.lastWrite = false, 0, err != nil, time.Now()
	if !ok {
		w.putBack(b, 0)
		w.syncers, w.urgent = append(waiting, w.syncers...), true
		w.schedule(0)
		return
	}
	w.putBack(b, n)
	if len(w.pending) == 0 { // waiters that came during the write have no other lines to wait for
		waiting, w.syncers = append(waiting, w.syncers...), nil
	}
	for _, done := range waiting {
		done <- err
	}
	w.scheduleNext(began)
}

// putBack puts the unwritten rest of a batch, all but n bytes, in front of the pending lines. It keeps the other buffer
// as spare.
func (w *Writer) putBack(b []byte, n int) {
	w.spare = b[:0]
	if n < len(b) {
		w.pending, w.spare = append(b[n:], w.pending...), w.pending[:0]
	}
	if cap(w.spare) > maxSpare {
		w.spare = nil
	}
}

// scheduleNext arranges that lines added since a write began will be written.
func (w *Writer) scheduleNext(began time.Time) {
	switch {
	case w.failing:
		w.schedule(retry)
	case len(w.pending) == 0 && w.unreported == 0:
		w.timer.Stop()
	case w.urgent || w.unreported > 0 || len(w.pending) >= batch:
		w.schedule(0)
	default:
		w.schedule(max(interval-w.lastWrite.Sub(began), 0))
	}
}

// reportLosses reports the number of lines lost since its last report, if lines can be written again.
func (w *Writer) reportLosses() {
	w.mu.Lock()
	n := w.unreported
	if n == 0 || w.failing || w.writing || w.reportLost == nil {
		w.mu.Unlock()
		return
	}
	w.unreported = 0
	w.mu.Unlock()
	w.reportLost(n)
}

// Sink is the destination of a [Writer].
type Sink interface {
	// Write is that of [io.Writer]. It may block indefinitely.
	Write(b []byte) (int, error)
	// TryWrite is Write if that does not block. Otherwise it does not write, and ok is false.
	TryWrite(b []byte) (n int, ok bool, err error)
}

// File returns the sink that writes to f: a file, pipe, socket or terminal.
func File(f *os.File) Sink {
	info, err := f.Stat()
	return file{f, err == nil && info.Mode().IsRegular()}
}

type file struct {
	*os.File
	regular bool
}

// atomicWrite is PIPE_BUF: a pipe that is ready for writing accepts this much without blocking. Sockets accept more.
const atomicWrite = 4096

// TryWrite implements [Sink]. Writing to a regular file does not block, because it goes to the page cache.
func (f file) TryWrite(b []byte) (int, bool, error) {
	if !f.regular && (len(b) > atomicWrite || !f.ready()) {
		return 0, false, nil
	}
	n, err := f.Write(b)
	return n, true, err
}

// ready reports whether the kernel accepts bytes without blocking. The descriptor is shared with the process that
// started the gateway, so it must not be made non-blocking instead.
func (f file) ready() bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	ready := false
	err = conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, 0)
		ready = err == nil && n == 1 && fds[0].Revents == unix.POLLOUT
	})
	return err == nil && ready
}
