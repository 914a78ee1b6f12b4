package host

import (
	"errors"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/host/handover"
	"boxgate/policy"
)

// obedient is the other end of a predecessor: it confirms what it is told, and notes it.
type obedient struct {
	mu   sync.Mutex
	told []handover.Message
}

// has reports whether it was told something.
func (o *obedient) has(kind handover.Kind, box policy.BoxID, url string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.told, func(m handover.Message) bool { return m.Kind == kind && m.Box == box && m.URL == url })
}

// newPredecessor returns a predecessor that drains, and what it is told from now on.
func newPredecessor(t *testing.T) (*Predecessor, *obedient) {
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
	o := &obedient{}
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			m, err := theirs.Receive()
			if err != nil {
				return
			}
			o.mu.Lock()
			o.told = append(o.told, m)
			o.mu.Unlock()
			answer := handover.Done
			if m.Kind == handover.Serving {
				answer = handover.Stopped
			}
			if theirs.Send(handover.Message{Kind: answer}) != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = errors.Join(ours.Close(), process.Process.Kill())
		_ = process.Wait()
		ended.Wait()
		_ = errors.Join(theirs.Close(), unix.Close(pidfd))
	})
	return &Predecessor{conn: ours, pidfd: pidfd, log: zap.NewNop(), relieved: true, only: map[policy.BoxID]bool{}}, o
}

// visitorsOf notes whose visitors were cut.
type visitorsOf []policy.BoxID

func (v *visitorsOf) CloseBox(id policy.BoxID) { *v = append(*v, id) }

// A box that has used up its quota loses its visitors in the predecessor, too: at once, and when that is relieved.
func TestAQuotaCutsVisitorsWhereTheyDrain(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.addBox("box1")
	g.addBox("box2")
	before, other := newPredecessor(t)
	q := &quota{before: before, log: zap.NewNop(), boxes: g.boxes, policies: g.policies, visitors: &visitorsOf{}}
	b, err := g.boxes.find("box1")
	if err != nil {
		t.Fatal(err)
	}
	q.set(t.Context(), b, true)
	if !other.has(handover.URLs, "box1", "") {
		t.Errorf("told: %v", other.told)
	}
	before, other = newPredecessor(t)
	before.relieved = false
	h := &Host{parts: &parts{log: zap.NewNop(), boxes: g.boxes}, before: before}
	h.relieve()
	if !other.has(handover.URLs, "box1", "") || !other.has(handover.Cut, "box1", "") || other.has(handover.URLs, "box2", "") || other.has(handover.Cut, "box2", "") {
		t.Errorf("told when it was relieved: %v", other.told)
	}
}
