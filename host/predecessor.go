package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/host/handover"
	"boxgate/host/state"
	"boxgate/policy"
	"boxgate/proxy"
)

// Predecessor is the process whose place this one takes. Once that has happened it only drains its connections, and this
// process tells it what must not go on. One that does not confirm that in time is killed: its connections end with it.
// nil: there is none.
type Predecessor struct {
	conn  *handover.Conn
	hello handover.Hello
	files map[string]*os.File
	pidfd int
	log   *zap.Logger
	udp   []udpSocket

	protected []netip.Prefix // what it keeps boxes from, besides its configuration; does not change any more

	mu       sync.Mutex         // one order at a time
	relieved bool               // it takes orders
	early    []handover.Message // orders from before that
	gone     bool
	only     map[policy.BoxID]bool // boxes whose policy alone is being changed, under the lock of each
}

// Greeted waits for the sockets of the process at the other end of a descriptor.
func Greeted(fd int) (*Predecessor, error) {
	conn, err := handover.NewConn(os.NewFile(uintptr(fd), "handover"))
	if err != nil {
		return nil, err
	}
	p := &Predecessor{conn: conn, only: map[policy.BoxID]bool{}}
	if p.pidfd, err = parent(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("the gateway that runs: %w", err), conn.Close())
	}
	if p.hello, p.files, err = conn.Greeted(); err != nil {
		return nil, errors.Join(fmt.Errorf("the gateway that runs passed on no sockets: %w", err), conn.Close())
	}
	return p, nil
}

// parent opens the process that has started this one, if it is the one at the other end: no other that has its ID by now, and no
// process that has adopted this one.
func parent(conn *handover.Conn) (pidfd int, err error) {
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

// Listen takes the sockets that were passed on, and opens what the configuration asks for besides.
func (p *Predecessor) Listen(ctx context.Context, cfg config.Config, a config.Addresses) (*Listeners, error) {
	for key, value := range fixed(cfg) {
		if was := p.hello.Fixed[key]; was != value {
			return nil, fmt.Errorf("%s cannot change from %q to %q while the gateway runs: stop it, and start it again", key, was, value)
		}
	}
	l, err := inherit(ctx, cfg, a, p.hello, p.files)
	if err == nil {
		p.udp = l.dnsUDP
	}
	return l, err
}

// Fail tells the predecessor, which goes on, why this process does not take its place.
func (p *Predecessor) Fail(why error) {
	_ = p.conn.Send(handover.Message{Kind: handover.Failed, Error: why.Error()})
	_ = p.conn.Close()
}

// Take waits until the store and the kernel rules are this process's.
func (p *Predecessor) Take() error {
	if err := p.conn.Send(handover.Message{Kind: handover.Prepared}); err != nil {
		return err
	}
	m, err := p.conn.Await(handover.Yours)
	if err != nil {
		return fmt.Errorf("the gateway that runs did not let go: %w", err)
	}
	p.protected = m.Protected
	return nil
}

// relieve tells the predecessor that this process serves, and returns once that accepts nothing any more. What it has is cut if it
// was judged by another configuration, or does not keep boxes from all that is protected here. On error it has ended without having
// said so, and perhaps without having told the service manager which process serves.
func (p *Predecessor) relieve(cfg config.Config, protected []netip.Prefix, log *zap.Logger) error {
	p.mu.Lock()
	p.log = log
	err := p.exchange(handover.Message{Kind: handover.Serving}, handover.Stopped)
	p.relieved = true
	early := p.early
	p.mu.Unlock()
	if err != nil {
		p.end(err)
	}
	for _, m := range early {
		p.tell(m)
	}
	for _, u := range p.udp {
		if err := u.resume(); err != nil {
			log.Warn("a DNS socket stays as the predecessor left it", zap.Error(err))
		}
	}
	unknown := func(at netip.Prefix) bool { return !slices.Contains(p.protected, at) }
	if p.hello.Policies != policiesOf(cfg) || slices.ContainsFunc(protected, unknown) {
		p.tell(handover.Message{Kind: handover.CutAll})
	}
	return err
}

// obeys is how long the predecessor may take to confirm an order.
const obeys = 5 * time.Second

// tell gives the predecessor an order and returns once it is in force: it has been confirmed, or there is no predecessor.
func (p *Predecessor) tell(m handover.Message) {
	if p == nil {
		return
	}
	p.mu.Lock()
	var err error
	switch {
	case !p.relieved:
		p.early = append(p.early, m)
	case !p.gone:
		err = p.exchange(m, handover.Done)
	}
	p.mu.Unlock()
	if err != nil {
		p.end(err)
	}
}

// exchange sends a message and waits for the answer. The caller holds p.mu.
func (p *Predecessor) exchange(m handover.Message, answer handover.Kind) error {
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

// wait waits until the predecessor has ended: until then it hears from this process alone.
func (p *Predecessor) wait(ctx context.Context) error {
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

// drains reports whether the predecessor still runs, and so may have connections of boxes.
func (p *Predecessor) drains() bool { return p != nil && !p.ended(0) }

// both are the connections of boxes: those of this process, and those that the predecessor drains. It implements
// [enforce.Proxy] and [secrets.Holders].
type both struct {
	*proxy.Proxy
	before *Predecessor
	boxes  *state.Table
}

// policyAlone notes that what changes for a box until the returned function is called is its policy, and not its header rules.
// The caller holds the lock of the box.
func (p *Predecessor) policyAlone(id policy.BoxID) (end func()) {
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

// Recheck implements [enforce.Proxy].
func (b both) Recheck(id policy.BoxID) {
	b.Proxy.Recheck(id)
	if b.before == nil {
		return
	}
	b.before.mu.Lock()
	alone := b.before.only[id]
	b.before.mu.Unlock()
	order := handover.Message{Kind: handover.Cut, Box: id}
	if known, err := b.boxes.Find(id); alone && err == nil {
		if c := known.Policy.Load(); c != nil {
			if spec, err := json.Marshal(c.Spec()); err == nil {
				order.Kind, order.Spec, order.Version = handover.Policy, spec, c.Version()
			}
		}
	}
	b.before.tell(order)
}

// CloseBox implements [enforce.Proxy].
func (b both) CloseBox(id policy.BoxID) {
	b.Proxy.CloseBox(id)
	b.before.tell(handover.Message{Kind: handover.Cut, Box: id})
}

// Holds implements [secrets.Holders]. What the predecessor was sent with is not known here: it may be any secret.
func (b both) Holds(secret string) bool { return b.Proxy.Holds(secret) || b.before.drains() }

// Revoke implements [secrets.Holders].
func (b both) Revoke(secret string) {
	b.Proxy.Revoke(secret)
	b.before.tell(handover.Message{Kind: handover.Secret, Secret: secret})
}
