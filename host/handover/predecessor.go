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

// Predecessor is the process whose place this one takes. Once that has happened it only drains its connections, and this
// process tells it what must not go on. One that does not confirm that in time is killed: its connections end with it.
// nil: there is none. Safe for concurrent use once it is relieved.
type Predecessor struct {
	conn  *Conn
	hello Hello
	files map[string]*os.File
	pidfd int
	log   *zap.Logger

	protected []netip.Prefix // what it keeps boxes from, besides its configuration; does not change any more

	mu       sync.Mutex // one order at a time
	relieved bool       // it takes orders
	early    []Message  // orders from before that
	gone     bool
	only     map[policy.BoxID]bool // boxes whose policy alone is being changed, under the lock of each
}

// NewPredecessor returns the process at the other end of a connection, which pidfd refers to and which has sent hello.
func NewPredecessor(conn *Conn, pidfd int, hello Hello, files map[string]*os.File) *Predecessor {
	return &Predecessor{conn: conn, hello: hello, files: files, pidfd: pidfd, log: zap.NewNop(), only: map[policy.BoxID]bool{}}
}

// Greeted waits for the sockets of the process at the other end of a descriptor.
func Greeted(fd int) (*Predecessor, error) {
	conn, err := NewConn(os.NewFile(uintptr(fd), "handover"))
	if err != nil {
		return nil, err
	}
	pidfd, err := parent(conn)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the gateway that runs: %w", err), conn.Close())
	}
	hello, files, err := conn.Greeted()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the gateway that runs passed on no sockets: %w", err), conn.Close())
	}
	return NewPredecessor(conn, pidfd, hello, files), nil
}

// parent opens the process that has started this one, if it is the one at the other end: no other that has its ID by now, and no
// process that has adopted this one.
func parent(conn *Conn) (pidfd int, err error) {
	pid, err := conn.Peer()
	if err != nil {
		return -1, err
	}
	if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		return -1, err
	}
	if os.Getppid() != pid { // asked last: until it ends, no other process has its ID
		return -1, errors.Join(errors.New("it has ended, or has not started this process"), unix.Close(pidfd))
	}
	return pidfd, nil
}

// Config is the text to use in the place of the configuration file; false: the process reads its own.
func (p *Predecessor) Config() ([]byte, bool) { return p.hello.Config, p.hello.Own }

// Hello returns the greeting of the process, and the files that came with it.
func (p *Predecessor) Hello() (Hello, map[string]*os.File) { return p.hello, p.files }

// Protected returns what the process keeps boxes from, besides its configuration. [Predecessor.Take] must have returned.
func (p *Predecessor) Protected() []netip.Prefix { return p.protected }

// Fail tells the predecessor, which goes on, why this process does not take its place.
func (p *Predecessor) Fail(why error) {
	_ = p.conn.Send(Message{Kind: Failed, Error: why.Error()})
	_ = p.conn.Close()
}

// Take waits until the store and the kernel rules are this process's.
func (p *Predecessor) Take() error {
	if err := p.conn.Send(Message{Kind: Prepared}); err != nil {
		return err
	}
	m, err := p.conn.Await(Yours)
	if err != nil {
		return fmt.Errorf("the gateway that runs did not let go: %w", err)
	}
	p.protected = m.Protected
	return nil
}

// Relieve tells the predecessor that this process serves, and returns once that accepts nothing any more; the orders of before follow. On
// error it has ended without having said so, and perhaps without having told the service manager which process serves.
func (p *Predecessor) Relieve(log *zap.Logger) error {
	p.mu.Lock()
	p.log = log
	err := p.exchange(Message{Kind: Serving}, Stopped)
	p.relieved = true
	early := p.early
	p.mu.Unlock()
	if err != nil {
		p.end(err)
	}
	for _, m := range early {
		p.Tell(m)
	}
	return err
}

// obeys is how long the predecessor may take to confirm an order.
const obeys = 5 * time.Second

// Tell gives the predecessor an order and returns once it is in force: it has been confirmed, or there is no predecessor.
func (p *Predecessor) Tell(m Message) {
	if p == nil {
		return
	}
	p.mu.Lock()
	var err error
	switch {
	case !p.relieved:
		p.early = append(p.early, m)
	case !p.gone:
		err = p.exchange(m, Done)
	}
	p.mu.Unlock()
	if err != nil {
		p.end(err)
	}
}

// exchange sends a message and waits for the answer. The caller holds p.mu.
func (p *Predecessor) exchange(m Message, answer Kind) error {
	_ = p.conn.SetDeadline(time.Now().Add(obeys))
	if err := p.conn.Send(m); err != nil {
		return err
	}
	return p.conn.Expect(answer)
}

// end makes sure that the predecessor, with which one can no longer speak, is gone.
func (p *Predecessor) end(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return
	}
	p.gone = true
	_ = p.conn.Close()
	if p.ended(time.Second) { // it had nothing left to drain
		return
	}
	p.log.Warn("the gateway that was replaced does not answer, and is killed with the connections that it still has", zap.Error(why))
	_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
	if !p.ended(time.Minute) {
		p.log.Error("the gateway that was replaced does not end")
	}
}

// Wait waits until the predecessor has ended: until then it hears from this process alone.
func (p *Predecessor) Wait(ctx context.Context) error {
	for p != nil && !p.ended(100*time.Millisecond) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// ended reports whether the predecessor has ended, by then.
func (p *Predecessor) ended(within time.Duration) bool {
	for until := time.Now().Add(within); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, int(max(0, time.Until(until).Milliseconds())))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// Drains reports whether the predecessor still runs, and so may have connections of boxes.
func (p *Predecessor) Drains() bool { return p != nil && !p.ended(0) }

// PolicyAlone notes that what changes for a box until the returned function is called is its policy, and not its header rules.
// The caller holds the lock of the box.
func (p *Predecessor) PolicyAlone(id policy.BoxID) (end func()) {
	if p == nil {
		return func() {}
	}
	p.set(id, true)
	return func() { p.set(id, false) }
}

func (p *Predecessor) set(id policy.BoxID, alone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.only, id); alone {
		p.only[id] = true
	}
}

// OnlyPolicy reports whether what changes for a box now is its policy alone; see [Predecessor.PolicyAlone].
func (p *Predecessor) OnlyPolicy(id policy.BoxID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.only[id]
}
