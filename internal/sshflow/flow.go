// Package sshflow bounds the data that an SSH connection has read and that its channels have not consumed.
package sshflow

import (
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	gossh "golang.org/x/crypto/ssh"
)

// Most is the most bytes read from a connection and not yet consumed: four full channel windows.
const Most = 8 << 20

// Cost is the memory used by each unconsumed byte on the wire. It covers the worst case: a packet with one byte of
// data takes more bytes on the wire than the few words that the library keeps of it.
const Cost = 2

// Free is the number of unconsumed bytes that the owner of the connection pays for otherwise.
const Free = 64 << 10

// Claim is an account that the backlog is charged to; implemented by [boxgate/internal/memory.Claim].
type Claim interface {
	// Grow takes n more bytes. It returns false if they are not available.
	Grow(n int) bool
	// Shrink returns n bytes.
	Shrink(n int)
	// Close returns everything.
	Close()
}

// Step is the granularity of memory claims, in bytes.
const Step = 256 << 10

// Overhead that is deducted as a fraction of the bytes: packet headers (of consumed data) and window updates (of sent
// data).
const (
	headerPart = 256
	updatePart = 1024
)

// Flow is the connection of one side. A channel's window limits the bytes that a peer may send ahead, but not the number
// of packets: each may carry a single byte. So the connection is not read further while too much of it is unconsumed.
//
// The library does not report the backlog of each channel. It is estimated as the bytes read since the slowest reader last
// found its channel empty, minus the bytes consumed since then. Protocol overhead must not accumulate in the estimate:
// packet headers are counted with the data that they carry, window updates with the bytes that were sent.
type Flow struct {
	net.Conn
	lastRead atomic.Int64 // time of the last read, in Unix nanoseconds
	sent     atomic.Int64

	mu       sync.Mutex
	changed  *sync.Cond
	streams  map[*Stream]struct{}
	read     int64 // bytes
	consumed int64 // bytes of data that streams consumed
	claim    Claim
	claimed  int64 // bytes of claim in use
	closed   bool
}

// Stream is one reader of the data that arrives on a connection.
type Stream struct {
	flow   *Flow
	behind bool  // unconsumed data may have arrived since mark
	mark   int64 // positionLocked when the stream last found its channel empty
}

// New returns the flow of a connection. Memory beyond [Free] bytes is charged to claim, which Close closes.
func New(c net.Conn, claim Claim) *Flow {
	f := &Flow{Conn: c, claim: claim, streams: map[*Stream]struct{}{}}
	f.changed = sync.NewCond(&f.mu)
	f.lastRead.Store(time.Now().UnixNano())
	return f
}

// SetClaim replaces the account that the backlog is charged to, and closes the previous one.
func (f *Flow) SetClaim(claim Claim) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claim.Close()
	f.claim, f.claimed = claim, 0
	if f.closed {
		claim.Close()
	}
	f.changed.Broadcast()
}

// Read reads from the connection once the backlog is below the limits.
func (f *Flow) Read(b []byte) (int, error) {
	if !f.awaitCapacity() {
		return 0, net.ErrClosed
	}
	n, err := f.Conn.Read(b)
	f.lastRead.Store(time.Now().UnixNano())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read += int64(n)
	return n, err
}

// awaitCapacity waits until the backlog allows a read. It returns false if the connection is closed.
func (f *Flow) awaitCapacity() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.closed && !f.hasCapacityLocked() {
		f.changed.Wait()
	}
	return !f.closed
}

// hasCapacityLocked reports whether more may be read, and adjusts the memory claim to the backlog.
func (f *Flow) hasCapacityLocked() bool {
	waits := f.backlogLocked()
	want := (max(0, waits-Free)*Cost + Step - 1) / Step * Step
	switch {
	case waits >= Most:
		return false
	case want > f.claimed:
		if !f.claim.Grow(int(want - f.claimed)) {
			return false
		}
	case want < f.claimed:
		f.claim.Shrink(int(f.claimed - want))
	}
	f.claimed = want
	return true
}

// backlogLocked returns the backlog: an upper estimate of the bytes that were read and not consumed.
func (f *Flow) backlogLocked() int64 {
	least := int64(math.MaxInt64)
	for s := range f.streams {
		if s.behind {
			least = min(least, s.mark)
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return max(0, f.positionLocked()-least)
}

// positionLocked returns the bytes read minus all data and overhead accounted for.
func (f *Flow) positionLocked() int64 {
	return f.read - f.consumed - f.consumed/headerPart - f.sent.Load()/updatePart
}

// Write writes to the connection.
func (f *Flow) Write(b []byte) (int, error) {
	if f.isClosed() {
		return 0, net.ErrClosed
	}
	n, err := f.Conn.Write(b)
	f.sent.Add(int64(n))
	return n, err
}

// Close makes reads and writes fail. It does not close the underlying connection: its owner may still send a last message.
func (f *Flow) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	f.changed.Broadcast()
	f.claim.Close()
	return f.SetDeadline(time.Unix(1, 0))
}

func (f *Flow) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// Limit sets the deadline of reads and writes. It is a no-op after Close.
func (f *Flow) Limit(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		_ = f.SetDeadline(t)
	}
}

// AddStream adds a stream. It counts as behind until the first call of [Stream.CaughtUp].
func (f *Flow) AddStream() *Stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &Stream{flow: f, behind: true, mark: f.positionLocked()}
	f.streams[s] = struct{}{}
	return s
}

// CaughtUp records that the stream has consumed everything and is about to block.
func (s *Stream) CaughtUp() { s.update(func() { s.behind = false }) }

// Consumed records that the stream consumed n bytes. all reports whether its channel is empty now. The stream counts as behind
// until it waits again.
func (s *Stream) Consumed(n int, all bool) {
	s.update(func() {
		s.flow.consumed += int64(n)
		s.behind = true
		if all {
			s.mark = s.flow.positionLocked()
		}
	})
}

// Remove removes the stream.
func (s *Stream) Remove() { s.update(func() { delete(s.flow.streams, s) }) }

func (s *Stream) update(change func()) {
	s.flow.mu.Lock()
	defer s.flow.mu.Unlock()
	change()
	s.flow.changed.Broadcast()
}

// ForEach calls take for each value of a channel of the connection, one at a time, until the channel is closed.
func ForEach[T any](f *Flow, from <-chan T, take func(T)) {
	s := f.AddStream()
	defer s.Remove()
	for {
		s.CaughtUp()
		v, ok := <-from
		if !ok {
			return
		}
		n := 0
		if r, ok := any(v).(*gossh.Request); ok {
			n = len(r.Payload)
		}
		s.Consumed(n, len(from) == 0)
		take(v)
	}
}

// Idle returns the time since the last read.
func (f *Flow) Idle() time.Duration { return time.Since(time.Unix(0, f.lastRead.Load())) }
