package host

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/config"
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
	b, err := g.boxes.Find("box1")
	if err != nil {
		t.Fatal(err)
	}
	q.set(t.Context(), b, true)
	if !other.has(handover.URLs, "box1", "") {
		t.Errorf("told: %v", other.told)
	}
	before, other = newPredecessor(t)
	before.relieved = false
	h := &Host{parts: &parts{log: zap.NewNop(), boxes: g.boxes}, before: before, protection: &protection{}}
	h.relieve()
	if !other.has(handover.URLs, "box1", "") || !other.has(handover.Cut, "box1", "") || other.has(handover.URLs, "box2", "") || other.has(handover.Cut, "box2", "") {
		t.Errorf("told when it was relieved: %v", other.told)
	}
}

// What is protected here and was not in the predecessor cuts all that it has; what is protected no longer does not.
func TestNewAddressesCutWhatDrains(t *testing.T) {
	t.Parallel()
	cfg, one, two := config.Config{}, netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	for _, c := range []struct {
		was, is []netip.Prefix
		cut     bool
	}{
		{[]netip.Prefix{one}, []netip.Prefix{one}, false}, {[]netip.Prefix{one, two}, []netip.Prefix{one}, false},
		{[]netip.Prefix{one}, []netip.Prefix{one, two}, true}, {nil, []netip.Prefix{one}, true},
	} {
		before, other := newPredecessor(t)
		before.relieved, before.protected, before.hello.Policies = false, c.was, policiesOf(cfg)
		before.relieve(cfg, c.is, zap.NewNop())
		if got := other.has(handover.CutAll, "", ""); got != c.cut {
			t.Errorf("%v, then %v: cut %v", c.was, c.is, got)
		}
	}
}

// A socket pair of another process than the one that has started this is not taken up: that one would be killed for it.
func TestAPredecessorIsTheParent(t *testing.T) {
	t.Parallel()
	ours, theirs, err := handover.Pair() // of this process itself
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	fd, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err := errors.Join(err, theirs.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Greeted(fd); err == nil || !strings.Contains(err.Error(), "has not started this process") {
		t.Error(err)
	}
}
