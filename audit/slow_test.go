package audit

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/audit/lines"
	"boxgate/policy"
)

// stuck is a sink that blocks and signals when a write begins.
type stuck struct {
	lines.Sink
	writing chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	s.writing <- struct{}{}
	return s.Sink.Write(b)
}

// fullPipe returns an idle log with a full pipe that is not read. writing signals when a write begins.
func fullPipe(t *testing.T) (l *Log, writing <-chan struct{}) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	s := stuck{lines.File(w), make(chan struct{}, 1)}
	for {
		if _, ok, err := s.TryWrite([]byte(strings.Repeat("x", 4096))); err != nil {
			t.Fatal(err)
		} else if !ok {
			return New(Options{Lines: lines.New(s)}), s.writing
		}
	}
}

// Decisions continue while the log is not read: in memory, to the subscribers and in the metrics. Lines that the log
// loses are counted.
func TestALogThatNobodyReadsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	l, _ := fullPipe(t)
	const n = 40_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Record(denial("evil.example.net")) // an idle log would write this one immediately
		for i := range n {
			e := request()
			e.Path = fmt.Sprint("/", i)
			l.Record(e)
		}
		l.Record(denial("another.example.net"))
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the log holds up what is logged")
	}
	recent := l.Recent(Filter{})
	if last := recent[len(recent)-1]; last.Seq != n+2 || last.Name != "another.example.net" {
		t.Errorf("the last event is %+v", last)
	}
	if got := metric(t, l, "boxgate_log_lost_total", ""); got < 1 || got != float64(l.opts.Lines.Lost()) {
		t.Errorf("boxgate_log_lost_total is %v, of %d", got, l.opts.Lines.Lost())
	}
}

// A box that fills a slow log leaves space for the lines of another, and refusals leave space for connections.
func TestABoxLeavesOthersRoomInASlowLog(t *testing.T) {
	t.Parallel()
	l, writing := fullPipe(t)
	l.Record(request())
	<-writing
	flood := func(e Event) {
		for lost := l.opts.Lines.Lost(); l.opts.Lines.Lost() == lost; {
			l.Record(e)
		}
	}
	logged := func(e Event) bool {
		lost := l.opts.Lines.Lost()
		l.Record(e)
		return l.opts.Lines.Lost() == lost
	}
	flood(request())
	other := request()
	other.Box = "another"
	if !logged(other) {
		t.Error("a box has filled the log for the others")
	}
	flood(other)
	refused := denial("evil.example.net")
	refused.Box, refused.Phase = "third", PhaseEnd // not coalesced
	if logged(refused) {
		t.Error("a refusal takes the room of a connection")
	}
	connected := request()
	connected.Box = "third"
	if !logged(connected) {
		t.Error("two boxes have filled the log for the others")
	}
	if e := request(); e.Verdict != policy.Allow || logged(e) {
		t.Error("a box that has filled its part gets more")
	}
}
