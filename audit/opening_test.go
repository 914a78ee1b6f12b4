package audit

import (
	"testing"
	"testing/synctest"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

const forwarded = "action=splice,reason=allow_all,stage=conn,verdict=allow"

func TestWhatGoesOnIsToldBeforeItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		var o Opening // reused by all cases
		e := Event{Time: time.Now(), Box: "b", Stage: policy.StageConn, Verdict: policy.Allow, Action: ActionSplice, Reason: name.ReasonAllowAll}
		end := func(e Event) {
			e.Duration = time.Since(e.Time)
			o.End(&e)
			l.Record(e)
		}
		o.Begin(l, &e)
		time.Sleep(openAfter - time.Nanosecond)
		e.BytesIn = 7
		end(e)
		synctest.Wait()
		if got := l.Recent(Filter{}); len(got) != 1 || got[0].Phase != "" || got[0].Conn != "" || got[0].BytesIn != 7 {
			t.Fatalf("what ended soon: %+v", got)
		}
		e.Time, e.BytesIn = time.Now(), 0
		o.Begin(l, &e)
		time.Sleep(openAfter)
		synctest.Wait()
		open := l.Recent(Filter{})[1]
		if open.Phase != PhaseOpen || open.Conn == "" || open.Duration != 0 || !open.Time.Equal(e.Time) {
			t.Fatalf("what goes on: %+v", open)
		}
		o.Begin(l, &e) // a retry
		time.Sleep(time.Hour)
		e.BytesIn = 8
		end(e)
		got := l.Recent(Filter{})
		if len(got) != 3 || got[2].Phase != PhaseEnd || got[2].Conn != open.Conn || got[2].BytesIn != 8 || !got[2].Time.Equal(time.Now()) {
			t.Fatalf("its end: %+v", got[2:])
		}
		if n := metric(t, l, "boxgate_decisions_total", forwarded); n != 2 {
			t.Errorf("two decisions were counted as %v", n)
		}
		if n := metric(t, l, "boxgate_bytes_total", "direction=in"); n != 15 {
			t.Errorf("15 bytes were counted as %v", n)
		}
		e.Verdict, e.Reason, e.Phase = policy.Deny, name.ReasonPolicyChanged, PhaseEnd
		l.Record(e)
		if n := metric(t, l, "boxgate_decisions_total", "action=splice,reason=policy_changed,stage=conn,verdict=deny"); n != 1 {
			t.Errorf("a cut was counted as %v decisions", n)
		}
	})
}
