package audit

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/audit/lines"
	"boxgate/policy"
	"boxgate/policy/name"
)

// The gateway's answers to strangers are reported once a second with their count, but requests with a credential each
// time.
func TestAnswersToStrangersAreToldOnceASecondWithTheirNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		answer := func(label string, c Credential) {
			l.Record(Event{Box: "b", Stage: policy.StageURL, Name: label, Action: ActionAnswer, Verdict: policy.Allow, Reason: name.ReasonURL, Credential: c, Status: 200})
		}
		for range 100 {
			answer("page", CredentialNone)
		}
		time.Sleep(time.Millisecond) // events at the same instant have no order
		for range 100 {
			answer("redirect", "")
		}
		for range 3 {
			answer("sign-in", CredentialBearer)
		}
		l.Flush()
		synctest.Wait()
		if got := emitted(l); got != "page×1 redirect×1 sign-in×1 sign-in×1 sign-in×1 page×99 redirect×99" {
			t.Errorf("emitted %s", got)
		}
		for i := range 1000 {
			answer(fmt.Sprint(i), CredentialNone)
		}
		l.Flush()
		synctest.Wait()
		events := l.Recent(Filter{})
		last := events[len(events)-1]
		if last.Verdict != policy.Allow || last.Name != "" || last.Count == 0 || last.Error != "requests of other kinds, reported by count" {
			t.Errorf("beyond what is told apart: %+v", last)
		}
	})
}

// TestAttackEventsOfOneBoxHoldUpOthers checks that a box which causes events as fast as it can, all emitted at the end
// of an interval, does not delay events of another box.
func TestAttackEventsOfOneBoxHoldUpOthers(t *testing.T) {
	t.Parallel()
	begun, goOn := make(chan struct{}), make(chan struct{})
	c := coalescer{boxes: map[policy.BoxID]*coalesced{}, emit: func(*Event) {
		begun <- struct{}{}
		<-goOn
	}}
	refusal := func(box policy.BoxID) *Event { e := denial("evil.example.com"); e.Box = box; return &e }
	if !c.admit(refusal("a")) || c.admit(refusal("a")) {
		t.Fatal("the first event is not emitted at once, or the second is")
	}
	go c.flush("a")
	<-begun
	other := make(chan struct{})
	go func() {
		defer close(other)
		if !c.admit(refusal("b")) {
			t.Error("the first event of another box is not emitted at once")
		}
	}()
	select {
	case <-other:
	case <-time.After(time.Minute):
		t.Error("a box waits while the events of another one are emitted")
	}
	close(goOn)
	c.flushAll()
}

// denial is a refusal of one box.
func denial(label string) Event {
	return Event{Box: "b", Stage: policy.StageConn, Name: label, Port: 443, Action: ActionRefuse, Reason: name.ReasonNotAllowed}
}

// emitted returns the remembered events, as name×count.
func emitted(l *Log) string {
	var out []string
	for _, e := range l.Recent(Filter{}) {
		out = append(out, fmt.Sprintf("%s×%d", e.Name, max(e.Count, 1)))
	}
	return strings.Join(out, " ")
}

func TestRepeatedRefusalsAreToldOnceASecondWithTheirNumber(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		want := func(s string) {
			t.Helper()
			synctest.Wait()
			if got := emitted(l); got != s {
				t.Fatalf("emitted %s, want %s", got, s)
			}
		}
		for range 500 {
			l.Record(denial("a"))
		}
		l.Record(denial("b"))
		want("a×1 b×1") // the first of each immediately
		if got := metric(t, l, "boxgate_decisions_total", "action=refuse,reason=not_allowed,stage=conn,verdict=deny"); got != 501 {
			t.Errorf("the metrics have %v of 501", got)
		}
		time.Sleep(coalesceInterval)
		want("a×1 b×1 a×499")
		l.Record(denial("a"))
		l.Record(denial("b"))
		want("a×1 b×1 a×499 b×1") // b had been quiet
		time.Sleep(coalesceInterval)
		want("a×1 b×1 a×499 b×1 a×1")
		l.Record(denial("a"))
		l.Record(Event{Box: "b", Name: "c", Verdict: policy.Allow})
		l.Record(Event{Box: "b", Name: "c", Verdict: policy.Allow}) // allowed decisions are emitted one by one
		l.Flush()
		want("a×1 b×1 a×499 b×1 a×1 c×1 c×1 a×1")
		if got := metric(t, l, "boxgate_decisions_total", "action=refuse,reason=not_allowed,stage=conn,verdict=deny"); got != 504 {
			t.Errorf("the metrics have %v of 504", got)
		}
		time.Sleep(time.Minute) // and no timer is running
	})
}

// A box that keeps trying new destinations gets a bounded number of lines, and every refusal is counted in one of them.
func TestRefusalsOfManyKindsAreCountedToTheLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w written
		l := New(Options{Lines: lines.New(&w), PerBox: 100000})
		const kinds, seconds = 5000, 3
		for s := range seconds {
			for i := range kinds {
				l.Record(denial(fmt.Sprintf("n%d.s%d", i, s)))
				l.Record(denial("always"))
			}
			e := denial("x")
			e.Reason = name.ReasonDeniedDomain
			for range 10 {
				l.Record(e)
			}
			time.Sleep(coalesceInterval)
			synctest.Wait()
		}
		l.Forget("another") // this emits no other box's refusals
		ctx := t.Context()
		stream := l.Subscribe(ctx, Filter{})
		l.Record(Event{Box: "quiet", Name: "q", Stage: policy.StageDNS})
		if e := <-stream.Events(); e.Name != "q" {
			t.Errorf("another box's refusal was not told at once: %+v", e)
		}
		l.Flush()
		lines := strings.Count(w.by(t, l), "\n")
		if lines > refusalBurst*2+seconds*(2*refusalKinds+4) {
			t.Errorf("%d lines in %d seconds", lines, seconds)
		}
		total, always := uint64(0), uint64(0)
		for _, e := range l.Recent(Filter{Box: "b"}) {
			total += max(e.Count, 1)
			if e.Name == "always" {
				always += max(e.Count, 1)
			}
			if e.Name == "" && (e.Addr != netip.Addr{} || e.Port != 0 || e.Error == "") {
				t.Errorf("the rest has a destination: %+v", e)
			}
		}
		if total != seconds*(2*kinds+10) || always != seconds*kinds {
			t.Errorf("%d refusals are logged, %d of one kind; want %d and %d", total, always, seconds*(2*kinds+10), seconds*kinds)
		}
	})
}

func TestRingKeepsWhatHappenedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{PerBox: 4})
		l.Record(denial("once"))
		for range 50 {
			l.Record(denial("loop"))
			l.Record(Event{Box: "b", Name: "allowed", Verdict: policy.Allow, BytesIn: 1})
			time.Sleep(2 * coalesceInterval) // slow enough for each to be emitted
		}
		if got := emitted(l); got != "once×1 allowed×49 loop×50 allowed×1" && got != "once×1 loop×50 allowed×50" && got != "once×1 loop×49 loop×1 allowed×50" {
			t.Errorf("remembered %s", got)
		}
		in := int64(0)
		for _, e := range l.Recent(Filter{}) {
			in += e.BytesIn
		}
		if in != 50 {
			t.Errorf("%d bytes are remembered of 50", in)
		}
		for i := range 10 {
			l.Record(denial(fmt.Sprint(i)))
		}
		if got := emitted(l); got != "allowed×50 7×1 8×1 9×1" { // allowed decisions have their own share
			t.Errorf("of different events %s is remembered", got)
		}
	})
}

// As many denials are marked as the self-test announced, and only until it ends.
func TestSelfTestMarksNoMoreThanIsExpected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		end := l.ExpectSelfTest("b", []Expected{{Count: 2, Match: func(e Event) bool { return e.Name == "announced" }}})
		other := denial("announced")
		other.Box = "another"
		l.Record(other)
		forged := denial("not announced")
		forged.SelfTest = true // only the log may set it
		l.Record(forged)
		for range 50 {
			l.Record(denial("announced"))
		}
		end()
		l.Record(denial("announced"))
		l.Flush()
		marked, own := uint64(0), uint64(0)
		for _, e := range l.Recent(Filter{}) {
			if e.SelfTest {
				marked += max(e.Count, 1)
				if e.Name != "announced" {
					t.Errorf("marked: %s", Line(e))
				}
			} else {
				own += max(e.Count, 1)
			}
		}
		if marked != 2 || own != 51 {
			t.Errorf("%d are marked and %d are not", marked, own)
		}
		if got := metric(t, l, "boxgate_decisions_total", "action=refuse,reason=not_allowed,stage=conn,verdict=deny"); got != 51 {
			t.Errorf("the metrics have %v of the boxes'", got)
		}
	})
}
