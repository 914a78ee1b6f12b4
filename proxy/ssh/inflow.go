package ssh

import (
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"boxgate/internal/memory"
)

// maxInflow is how much may have been read of a connection that nobody took yet: four full windows of channels.
const maxInflow = 8 << 20

// inflowCost is what a byte on the wire takes in memory until it is taken: a packet with one byte of data is longer on the
// wire than the few words that it becomes.
const inflowCost = 2

// freeInflow is how much may wait that the cost of the connection includes.
const freeInflow = 64 << 10

// claimStep is by how much claims grow and shrink.
const claimStep = 256 << 10

// Parts of what is taken and sent that a connection brings in addition: headers of full packets, and updates of windows.
const (
	headerPart = 256
	updatePart = 1024
)

// inflow is one end's connection. A channel's window limits the bytes that a peer may send before they are taken, but not
// the packets: each may bring a single byte. So the connection is not read further while too much of it waits.
//
// How much waits is not known of each channel. Known is how much was read of the connection since the readers of channels
// last found nothing, less what they took since then: about as much. What else a connection brings must not add up over
// time: the overhead of packets is counted with the data that they bring, and the updates of windows with what was sent.
type inflow struct {
	net.Conn
	last atomic.Int64 // when something was read, in Unix nanoseconds
	sent atomic.Int64

	mu      sync.Mutex
	freed   *sync.Cond
	streams map[*stream]struct{}
	read    int64 // bytes
	taken   int64 // bytes of data that streams took
	claim   memory.Claim
	claimed int64 // how much of it
	closed  bool
}

// stream is a reader of part of what a connection brings.
type stream struct {
	flow   *inflow
	behind bool  // something that is not taken may have been read since mark
	mark   int64 // where the flow was when the stream last found nothing more
}

func newInflow(c net.Conn, account *memory.Account) *inflow {
	f := &inflow{Conn: c, streams: map[*stream]struct{}{}}
	f.freed = sync.NewCond(&f.mu)
	f.claim.Open(account, memory.Buffers)
	f.last.Store(time.Now().UnixNano())
	return f
}

// Read reads from the connection, as soon as not too much waits.
func (f *inflow) Read(b []byte) (int, error) {
	if !f.await() {
		return 0, net.ErrClosed
	}
	n, err := f.Conn.Read(b)
	f.last.Store(time.Now().UnixNano())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read += int64(n)
	return n, err
}

// await waits until there is room, and reports false if the connection is closed.
func (f *inflow) await() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.closed && !f.roomLocked() {
		f.freed.Wait()
	}
	return !f.closed
}

// roomLocked reports whether more may be read, and has the account pay for what waits.
func (f *inflow) roomLocked() bool {
	waits := f.waitsLocked()
	want := (max(0, waits-freeInflow)*inflowCost + claimStep - 1) / claimStep * claimStep
	switch {
	case waits >= maxInflow:
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

// waitsLocked returns how much was read and may not have been taken.
func (f *inflow) waitsLocked() int64 {
	least := int64(math.MaxInt64)
	for s := range f.streams {
		if s.behind {
			least = min(least, s.mark)
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return max(0, f.atLocked()-least)
}

// atLocked returns how much was read that no stream has accounted for.
func (f *inflow) atLocked() int64 {
	return f.read - f.taken - f.taken/headerPart - f.sent.Load()/updatePart
}

// Write writes to the connection.
func (f *inflow) Write(b []byte) (int, error) {
	if f.isClosed() {
		return 0, net.ErrClosed
	}
	n, err := f.Conn.Write(b)
	f.sent.Add(int64(n))
	return n, err
}

// Close makes reads and writes fail. It does not close the connection, whose owner may have more to say before it does.
func (f *inflow) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	f.freed.Broadcast()
	f.claim.Close()
	return f.SetDeadline(time.Unix(1, 0))
}

func (f *inflow) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// setDeadline sets the deadline of reads and writes, unless the connection is closed.
func (f *inflow) setDeadline(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		_ = f.SetDeadline(t)
	}
}

// open adds a stream that is behind until it is [stream.waiting].
func (f *inflow) open() *stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &stream{flow: f, behind: true, mark: f.atLocked()}
	f.streams[s] = struct{}{}
	return s
}

// waiting says that the stream is about to wait for more.
func (s *stream) waiting() { s.set(func() { s.behind = false }) }

// took says that the stream took n bytes, and whether it left any; until it waits again, it is behind.
func (s *stream) took(n int, all bool) {
	s.set(func() {
		s.flow.taken += int64(n)
		s.behind = true
		if all {
			s.mark = s.flow.atLocked()
		}
	})
}

// end removes the stream.
func (s *stream) end() { s.set(func() { delete(s.flow.streams, s) }) }

func (s *stream) set(change func()) {
	s.flow.mu.Lock()
	defer s.flow.mu.Unlock()
	change()
	s.flow.freed.Broadcast()
}

// each takes what comes from a connection's channel, one after the other, until it ends.
func each[T any](f *inflow, from <-chan T, take func(T)) {
	s := f.open()
	defer s.end()
	for {
		s.waiting()
		v, ok := <-from
		if !ok {
			return
		}
		s.took(0, len(from) == 0)
		take(v)
	}
}

// idle returns for how long nothing was read.
func (f *inflow) idle() time.Duration { return time.Since(time.Unix(0, f.last.Load())) }
