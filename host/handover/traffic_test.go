package handover

import (
	"maps"
	"os"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// A predecessor is asked for its traffic, unless its version is older: such a process would cut all connections.
func TestTrafficOfAPredecessor(t *testing.T) {
	t.Parallel()
	if _, ok := (*Predecessor)(nil).Traffic(); ok {
		t.Error("no process has traffic")
	}
	for _, answers := range []bool{true, false} {
		ours, file, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := NewConn(file)
		if err != nil {
			t.Fatal(err)
		}
		pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			t.Fatal(err)
		}
		p := NewPredecessor(ours, pidfd, Hello{Traffic: answers}, nil)
		if _, ok := p.Traffic(); ok {
			t.Error("it is asked before it drains")
		}
		want := map[policy.BoxID]Bytes{"b1": {In: 1, Out: 2}}
		asked := make(chan Kind, 3)
		go func() {
			defer close(asked)
			for {
				m, err := theirs.Receive()
				if err != nil {
					return
				}
				asked <- m.Kind
				answer := Message{Kind: Stopped}
				if m.Kind == Traffic {
					answer = Message{Kind: Done, Traffic: want}
				}
				_ = theirs.Send(answer)
			}
		}()
		if err := p.AnnounceServing(zap.NewNop()); err != nil {
			t.Fatal(err)
		}
		got, ok := p.Traffic()
		if ok != answers || answers && !maps.Equal(got, want) {
			t.Errorf("answers %v: %v, %v", answers, got, ok)
		}
		_ = ours.Close()
		_ = theirs.Close()
		var kinds []Kind
		for kind := range asked {
			kinds = append(kinds, kind)
		}
		if n := len(kinds); n != 1 && !answers || n != 2 && answers {
			t.Errorf("asked %q", kinds)
		}
		_ = unix.Close(pidfd)
	}
}
