// Package handovertest provides predecessors for tests.
package handovertest

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/host/handover"
	"boxgate/policy"
)

// Peer is the other end of a predecessor. It confirms and records the messages it receives.
type Peer struct {
	mu       sync.Mutex
	received []handover.Message
}

// Has reports whether a message was received.
func (o *Peer) Has(kind handover.Kind, box policy.BoxID, url string) bool {
	return slices.ContainsFunc(o.Received(), func(m handover.Message) bool { return m.Kind == kind && m.Box == box && m.URL == url })
}

// Received returns the messages received so far.
func (o *Peer) Received() []handover.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.received)
}

// New returns a predecessor that drains, and a Peer with the messages sent to it from then on.
func New(t testing.TB) (*handover.Predecessor, *Peer) {
	t.Helper()
	p, o := Unrelieved(t, handover.Hello{}, nil)
	if err := p.AnnounceServing(zap.NewNop()); err != nil {
		t.Fatal(err)
	}
	return p, o
}

// Unrelieved returns a predecessor that has released the store and still serves. hello is its greeting, and protected are
// its protected ranges.
func Unrelieved(t testing.TB, hello handover.Hello, protected []netip.Prefix) (*handover.Predecessor, *Peer) {
	t.Helper()
	process := exec.CommandContext(t.Context(), "sleep", "infinity")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(process.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, f, err := handover.Pair()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := handover.NewConn(f)
	if err != nil {
		t.Fatal(err)
	}
	o := &Peer{}
	var ended sync.WaitGroup
	ended.Go(func() { o.answer(theirs, protected) })
	t.Cleanup(func() {
		_ = errors.Join(ours.Close(), process.Process.Kill())
		_ = process.Wait()
		ended.Wait()
		_ = errors.Join(theirs.Close(), unix.Close(pidfd))
	})
	p := handover.NewPredecessor(ours, pidfd, hello, nil)
	if err := p.AwaitRelease(); err != nil {
		t.Fatal(err)
	}
	return p, o
}

// answer confirms messages until the connection closes.
func (o *Peer) answer(conn *handover.Conn, protected []netip.Prefix) {
	for {
		m, err := conn.Receive()
		if err != nil {
			return
		}
		answer := handover.Message{Kind: handover.Done}
		switch m.Kind {
		case handover.Prepared:
			answer = handover.Message{Kind: handover.Yours, Protected: protected}
		case handover.Serving:
			answer.Kind = handover.Stopped
		}
		o.mu.Lock()
		o.received = append(o.received, m)
		o.mu.Unlock()
		if conn.Send(answer) != nil {
			return
		}
	}
}
