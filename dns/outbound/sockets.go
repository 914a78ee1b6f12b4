// Package outbound asks DNS servers over UDP, many questions at a time, without a goroutine, a timer or an allocation
// for each. An off-path forger must guess as much as with a new socket per question (RFC 5452): a port that the kernel
// picks at random, a random ID, and random letter case.
package outbound

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	maxAnswer = 4096
	// maxReady is the number of events that one call of [Sockets.Wait] handles.
	maxReady = 64
	// watched is the epoll index of the watched descriptor, which is not a question's.
	watched = -1
)

// ErrBusy is returned when the maximum number of questions is open.
var ErrBusy = errors.New("too many questions are open")

// Budget bounds the sockets that several [Sockets] keep together. It is safe for concurrent use.
type Budget struct{ left atomic.Int64 }

// NewBudget returns a budget of n sockets.
func NewBudget(n int) *Budget {
	b := &Budget{}
	b.left.Store(int64(n))
	return b
}

func (b *Budget) acquire() bool {
	if b.left.Add(-1) >= 0 {
		return true
	}
	b.left.Add(1)
	return false
}

func (b *Budget) release(n int) { b.left.Add(int64(n)) }

// Sockets are the sockets of open questions, each carrying a T. Not safe for concurrent use.
type Sockets[T any] struct {
	epoll      int
	limit      int
	budget     *Budget
	all        []*Question[T]
	unused     []*Question[T]
	random     [512]byte
	randomUsed int // of coins
	ready      [maxReady]unix.EpollEvent
	answer     [maxAnswer]byte
}

// New returns sockets for at most that many concurrent questions, fewer if the budget is exhausted. [Sockets.Wait] also
// waits until the descriptor watch is readable.
func New[T any](most int, budget *Budget, watch int) (*Sockets[T], error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("outbound: %w", err)
	}
	s := &Sockets[T]{epoll: epoll, limit: most, budget: budget}
	s.randomUsed = len(s.random)
	if err := s.add(watch, watched); err != nil {
		return nil, errors.Join(err, unix.Close(epoll))
	}
	return s, nil
}

func (s *Sockets[T]) add(fd int, index int32) error {
	err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: index})
	if err != nil {
		return fmt.Errorf("outbound: watch a socket: %w", err)
	}
	return nil
}

// Open returns the number of open questions.
func (s *Sockets[T]) Open() int { return len(s.all) - len(s.unused) }

// Close closes all sockets. Open questions get no answer.
func (s *Sockets[T]) Close() error {
	for _, q := range s.all {
		q.close()
	}
	s.budget.release(len(s.all))
	s.all, s.unused = nil, nil
	return unix.Close(s.epoll)
}

// Each calls f for each open question. f may end it.
func (s *Sockets[T]) Each(f func(*Question[T])) {
	for _, q := range s.all {
		if q.open {
			f(q)
		}
	}
}

// Ask sends a question about a name in lower case, in presentation format without the final dot.
func (s *Sockets[T]) Ask(server netip.AddrPort, name string, qtype uint16, now time.Time) (*Question[T], error) {
	q, err := s.acquireQuestion()
	if err != nil {
		return nil, err
	}
	q.write(name, qtype, s.randomBytes(2+len(name)))
	if err := q.send(server); err != nil {
		s.End(q)
		return nil, fmt.Errorf("outbound: ask %s: %w", server, err)
	}
	q.Sent = now
	return q, nil
}

// acquireQuestion returns a question without a port.
func (s *Sockets[T]) acquireQuestion() (*Question[T], error) {
	if n := len(s.unused); n > 0 {
		q := s.unused[n-1]
		s.unused = s.unused[:n-1]
		q.open = true
		return q, nil
	}
	if len(s.all) >= s.limit || !s.budget.acquire() {
		return nil, ErrBusy
	}
	q := &Question[T]{fd: -1, open: true, index: int32(len(s.all)), watch: s.add}
	s.all = append(s.all, q)
	return q, nil
}

// randomBytes returns n random bytes, valid until the next call.
func (s *Sockets[T]) randomBytes(n int) []byte {
	if len(s.random)-s.randomUsed < n {
		_, _ = rand.Read(s.random[:]) // never fails
		s.randomUsed = 0
	}
	s.randomUsed += n
	return s.random[s.randomUsed-n : s.randomUsed]
}

// End ends a question and releases its port.
func (s *Sockets[T]) End(q *Question[T]) {
	q.disconnect()
	var zero T
	q.For, q.open = zero, false
	s.unused = append(s.unused, q)
}

// Wait waits until the watched descriptor is readable, which it reports, or until the time is over. It calls done for
// each question that is over, and done must end it: with the answer, of any response code, or with an error,
// [ErrSuspect] or the socket's. The next call overwrites the answer.
func (s *Sockets[T]) Wait(wait time.Duration, done func(q *Question[T], answer []byte, err error)) (readable bool, err error) {
	n, err := unix.EpollWait(s.epoll, s.ready[:], int(wait/time.Millisecond))
	if err != nil && err != unix.EINTR {
		return false, fmt.Errorf("outbound: wait: %w", err)
	}
	for _, event := range s.ready[:max(n, 0)] {
		if event.Fd == watched {
			readable = true
			continue
		}
		q := s.all[event.Fd]
		if !q.open {
			q.drain() // a late answer
		} else if answer, err := q.receive(s.answer[:]); err != errForeign { //nolint:errorlint // it is never wrapped
			done(q, answer, err)
		}
	}
	return readable, nil
}

// rawSockaddr encodes an address for connect(2) into to.
func rawSockaddr(a netip.AddrPort, to *unix.RawSockaddrInet6) (size uintptr) {
	*to = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: a.Addr().As16()}
	size = unix.SizeofSockaddrInet6
	if a.Addr().Is4() {
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(to)) = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.Addr().As4()}
		size = unix.SizeofSockaddrInet4
	}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&to.Port))[:], a.Port())
	return size
}
