package handover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// Predecessor is the process that this one replaces. Once relieved, it only drains its connections, and executes the
// orders of this process. If it does not confirm an order in time, it is killed, together with its connections. A nil
// Predecessor stands for a fresh start. Safe for concurrent use after [Predecessor.AnnounceServing].
type Predecessor struct {
	conn  *Conn
	hello Hello
	files map[string]*os.File
	pidfd int
	log   *zap.Logger

	protected []netip.Prefix // ranges it protects in addition to its configuration; immutable once set

	mu         sync.Mutex // serialises orders
	relieved   bool       // it accepts orders
	queued     []Message  // orders given before that
	terminated bool
	policyOnly map[policy.BoxID]bool // boxes whose current change affects only their policy; see PolicyAlone
}

// NewPredecessor returns the process at the other end of conn, with its pidfd and its hello message.
func NewPredecessor(conn *Conn, pidfd int, hello Hello, files map[string]*os.File) *Predecessor {
	return &Predecessor{conn: conn, hello: hello, files: files, pidfd: pidfd, log: zap.NewNop(), policyOnly: map[policy.BoxID]bool{}}
}

// Greeted receives the hello message on the descriptor fd.
func Greeted(fd int) (*Predecessor, error) {
	conn, err := NewConn(os.NewFile(uintptr(fd), "handover"))
	if err != nil {
		return nil, err
	}
	pidfd, err := parentPidfd(conn)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the running gateway: %w", err), conn.Close())
	}
	hello, files, err := conn.Greeted()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the running gateway did not pass its sockets: %w", err), conn.Close())
	}
	return NewPredecessor(conn, pidfd, hello, files), nil
}

// parentPidfd returns a pidfd of the parent process, after checking that it is the other end of conn: not a process that
// reused its ID, and not one that adopted this process.
func parentPidfd(conn *Conn) (pidfd int, err error) {
	pid, err := conn.Peer()
	if err != nil {
		return -1, err
	}
	if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		return -1, err
	}
	if os.Getppid() != pid { // checked last: as long as the parent runs, its ID cannot be reused
		return -1, errors.Join(errors.New("it has ended, or has not started this process"), unix.Close(pidfd))
	}
	return pidfd, nil
}

// Config returns the text that replaces the configuration file. If false, the process reads the file.
func (p *Predecessor) Config() ([]byte, bool) { return p.hello.Config, p.hello.Own }

// Hello returns the hello message, and the files that came with it.
func (p *Predecessor) Hello() (Hello, map[string]*os.File) { return p.hello, p.files }

// Protected returns the ranges that the process protects in addition to its configuration. Call it after
// [Predecessor.AwaitRelease].
func (p *Predecessor) Protected() []netip.Prefix { return p.protected }

// Fail tells the predecessor why this process cannot replace it. The predecessor continues.
func (p *Predecessor) Fail(why error) {
	_ = p.conn.Send(Message{Kind: Failed, Error: why.Error()})
	_ = p.conn.Close()
}

// AwaitRelease waits until this process owns the store and the kernel rules.
func (p *Predecessor) AwaitRelease() error {
	if err := p.conn.Send(Message{Kind: Prepared}); err != nil {
		return err
	}
	m, err := p.conn.Await(Yours)
	if err != nil {
		return fmt.Errorf("the running gateway did not release its resources: %w", err)
	}
	p.protected = m.Protected
	return nil
}

// AnnounceServing announces that this process serves, and returns once the predecessor has stopped accepting. Earlier orders are
// sent then. On an error, the predecessor has ended without confirming, and possibly without notifying the service
// manager of its successor.
func (p *Predecessor) AnnounceServing(log *zap.Logger) error {
	p.mu.Lock()
	p.log = log
	err := p.exchange(Message{Kind: Serving}, Stopped)
	p.relieved = true
	early := p.queued
	p.mu.Unlock()
	if err != nil {
		p.terminate(err)
	}
	for _, m := range early {
		p.SendOrder(m)
	}
	return err
}

// orderTimeout is how long the predecessor may take to confirm an order.
const orderTimeout = 5 * time.Second

// SendOrder sends an order to the predecessor, and returns once it was executed or the predecessor has ended.
func (p *Predecessor) SendOrder(m Message) {
	if p == nil {
		return
	}
	p.mu.Lock()
	var err error
	switch {
	case !p.relieved:
		p.queued = append(p.queued, m)
	case !p.terminated:
		err = p.exchange(m, Done)
	}
	p.mu.Unlock()
	if err != nil {
		p.terminate(err)
	}
}

// Traffic returns the traffic of remote boxes in the predecessor since this process owns the store. ok is false if it does not drain, or is
// too old to answer.
func (p *Predecessor) Traffic() (seen map[policy.BoxID]Bytes, ok bool) {
	if p == nil || !p.hello.Traffic {
		return nil, false
	}
	p.mu.Lock()
	if !p.relieved || p.terminated {
		p.mu.Unlock()
		return nil, false
	}
	_ = p.conn.SetDeadline(time.Now().Add(orderTimeout))
	err := p.conn.Send(Message{Kind: Traffic})
	var m Message
	if err == nil {
		m, err = p.conn.Await(Done)
	}
	p.mu.Unlock()
	if err != nil {
		p.terminate(err)
	}
	return m.Traffic, err == nil
}

// exchange sends a message and waits for the answer. The caller holds p.mu.
func (p *Predecessor) exchange(m Message, answer Kind) error {
	_ = p.conn.SetDeadline(time.Now().Add(orderTimeout))
	if err := p.conn.Send(m); err != nil {
		return err
	}
	return p.conn.Expect(answer)
}

// terminate makes sure that an unresponsive predecessor ends.
func (p *Predecessor) terminate(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminated {
		return
	}
	p.terminated = true
	_ = p.conn.Close()
	if p.endsWithin(time.Second) { // it had finished draining
		return
	}
	p.log.Warn("the replaced gateway does not respond; it is killed, with its remaining connections", zap.Error(why))
	_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
	if !p.endsWithin(time.Minute) {
		p.log.Error("the replaced gateway does not end")
	}
}

// Wait waits until the predecessor has ended. Until then this process must remain, as its only source of orders.
func (p *Predecessor) Wait(ctx context.Context) error {
	for p != nil && !p.endsWithin(100*time.Millisecond) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// endsWithin reports whether the predecessor ends within a duration.
func (p *Predecessor) endsWithin(within time.Duration) bool {
	for until := time.Now().Add(within); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, int(max(0, time.Until(until).Milliseconds())))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// Drains reports whether the predecessor still runs, and so may have connections of boxes.
func (p *Predecessor) Drains() bool { return p != nil && !p.endsWithin(0) }

// PolicyAlone marks a box whose policy changes, but not its header rules, until end is called. The caller holds the lock
// of the box.
func (p *Predecessor) PolicyAlone(id policy.BoxID) (end func()) {
	if p == nil {
		return func() {}
	}
	p.setPolicyOnly(id, true)
	return func() { p.setPolicyOnly(id, false) }
}

func (p *Predecessor) setPolicyOnly(id policy.BoxID, alone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.policyOnly, id); alone {
		p.policyOnly[id] = true
	}
}

// OnlyPolicy reports whether the current change of a box affects only its policy; see [Predecessor.PolicyAlone].
func (p *Predecessor) OnlyPolicy(id policy.BoxID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.policyOnly[id]
}
