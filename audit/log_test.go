package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/audit/lines"
	"boxgate/policy"
	"boxgate/policy/name"
)

// nasty is text that a box might send to confuse readers of the log.
const nasty = "a\x1b[31mb\r\nc\x00d\u202ee\u2066f\x9bg\u009bh\x7fi\u2028j\"k\\l\xffשm"

// written collects the output of a log.
type written struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *written) TryWrite(p []byte) (int, bool, error) {
	n, err := w.Write(p)
	return n, true, err
}

// by returns the output of l, including pending lines.
func (w *written) by(t *testing.T, l *Log) string {
	t.Helper()
	if err := l.opts.Lines.Sync(); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// full is an event in which every field is set, the texts to something nasty.
func full() Event {
	return Event{
		Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Box: "b1", Stage: policy.StageHTTP, Protocol: policy.TCP, Name: nasty,
		Addr: netip.MustParseAddr("198.51.100.7"), Port: 443, Method: nasty, Path: "/" + nasty, Verdict: policy.Deny,
		Action: ActionRefuse, Reason: name.ReasonNotAllowed, Rule: nasty, Version: 7, Headers: []string{"X-" + nasty},
		BytesIn: 1, BytesOut: 2, Duration: 3 * time.Millisecond, Status: 403, Count: 4, Phase: PhaseOpen, Conn: nasty, Error: nasty,
	}
}

// assertHarmless fails if text has anything but printable ASCII.
func assertHarmless(t *testing.T, what, text string) {
	t.Helper()
	for i, r := range text {
		if r < ' ' || r > '~' {
			t.Errorf("%s: %U at %d of %q", what, r, i, text)
			return
		}
	}
}

func TestNothingABoxSaysReachesTheTerminal(t *testing.T) {
	t.Parallel()
	assertHarmless(t, "Line", Line(Event{Verdict: policy.Allow, RCode: nasty}))
	assertHarmless(t, "Line", Line(full()))
	if forged := Line(Event{Name: "x  allow_all  y"}); strings.Contains(forged, "  allow_all") {
		t.Errorf("a name became a column: %s", forged)
	}
	for _, console := range []bool{false, true} {
		var w written
		l := New(Options{Lines: lines.New(&w), Console: console})
		l.Record(full())
		line, rest, found := strings.Cut(w.by(t, l), "\n")
		if !found || rest != "" {
			t.Errorf("console %v: not one line: %q", console, w.by(t, l))
		}
		assertHarmless(t, fmt.Sprintf("console %v", console), strings.ReplaceAll(line, "\t", " "))
		event := l.Recent(Filter{})[0]
		for _, text := range []string{event.Name, event.Method, event.Path, event.Rule, event.Error, event.Headers[0]} {
			assertHarmless(t, "remembered", text)
		}
		data, err := json.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		assertHarmless(t, "JSON", string(data))
		if Line(event) != Line(full()) {
			t.Errorf("escaped twice:\n%s\n%s", Line(event), Line(full()))
		}
	}
}

func TestRecentIsBoundedAndFiltered(t *testing.T) {
	t.Parallel()
	l := New(Options{PerBox: 3, MaxBoxes: 2})
	start := time.Now()
	record := func(box policy.BoxID, i int, v policy.Verdict) {
		l.Record(Event{Box: box, Time: start.Add(time.Duration(i) * time.Second), Verdict: v, Status: i})
	}
	for i := range 5 {
		record("a", i, policy.Verdict(i%2)) // odd ones allowed
	}
	record("b", 10, policy.Deny)
	statuses := func(f Filter) (out []int) {
		for _, e := range l.Recent(f) {
			out = append(out, e.Status)
		}
		return out
	}
	for _, tt := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "[2 3 4 10]"},
		{Filter{Box: "a"}, "[2 3 4]"},
		{Filter{Box: "a", Denied: true}, "[2 4]"},
		{Filter{Since: start.Add(4 * time.Second)}, "[4 10]"},
		{Filter{Box: "c"}, "[]"},
	} {
		if got := fmt.Sprint(statuses(tt.filter)); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.filter, got, tt.want)
		}
	}
	record("c", 11, policy.Deny)
	if got := fmt.Sprint(statuses(Filter{})); got != "[10 11]" {
		t.Errorf("a third box: %s; want the box silent longest forgotten", got)
	}
	l.Forget("b")
	if got := fmt.Sprint(statuses(Filter{})); got != "[11]" {
		t.Errorf("after Forget: %s", got)
	}
}

func TestSlowReaderLosesEventsAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	l := New(Options{Buffer: 4})
	ctx, cancel := context.WithCancel(t.Context())
	slow, denials := l.Subscribe(ctx, Filter{}), l.Subscribe(ctx, Filter{Box: "a", Denied: true})
	for i := range 10 {
		l.Record(Event{Box: "a", Status: i, Verdict: policy.Allow})
	}
	l.Record(Event{Box: "b"})
	l.Record(Event{Box: "a", Status: 99})
	if slow.Lost() != 8 || denials.Lost() != 0 {
		t.Errorf("lost %d and %d, want 8 and 0", slow.Lost(), denials.Lost())
	}
	cancel()
	count := func(s *Subscription) (out []int) {
		for e := range s.Events() { // ends only if the channel is closed
			out = append(out, e.Status)
		}
		return out
	}
	if got := fmt.Sprint(count(slow), count(denials)); got != "[0 1 2 3] [99]" {
		t.Errorf("delivered %s", got)
	}
	l.Record(Event{Box: "a"}) // no subscriber
	if got := metric(t, l, "boxgate_lost_total", ""); got != 8 {
		t.Errorf("boxgate_lost_total is %v", got)
	}
}

// metric returns the value of the series with the given labels.
func metric(t *testing.T, l *Log, name, labels string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(l); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var got []string
			for _, p := range m.GetLabel() {
				got = append(got, p.GetName()+"="+p.GetValue())
			}
			if f.GetName() == name && strings.Join(got, ",") == labels {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	l.Record(full())
	l.Record(Event{Stage: policy.StageDNS, Verdict: policy.Allow, Reason: name.ReasonAllowAll, Action: ActionForward})
	for labels, want := range map[string]float64{
		"action=refuse,reason=not_allowed,stage=http,verdict=deny": 4, // the event counts four
		"action=forward,reason=allow_all,stage=dns,verdict=allow":  1,
	} {
		if got := metric(t, l, "boxgate_decisions_total", labels); got != want {
			t.Errorf("decisions %s: %v, want %v", labels, got, want)
		}
	}
	if got := metric(t, l, "boxgate_bytes_total", "direction=out"); got != 2 {
		t.Errorf("bytes out: %v", got)
	}
	if got := metric(t, l, "boxgate_duration_seconds", "stage=http"); got != 1 {
		t.Errorf("durations: %v", got)
	}
}

func TestMetricLabelsStayBounded(t *testing.T) {
	t.Parallel()
	l := New(Options{MaxBoxes: 1, PerBox: 1})
	for i := range 3 * maxSeries {
		l.Record(Event{Stage: policy.StageConn, Reason: name.Reason(fmt.Sprintf("reason_%d", i))})
	}
	l.Record(Event{Stage: policy.StageConn, Reason: "evil.example.com/path"})
	reg := prometheus.NewRegistry()
	reg.MustRegister(l)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); n > maxSeries+2 {
			t.Errorf("%s has %d series", f.GetName(), n)
		}
		if strings.Contains(f.String(), "evil") {
			t.Errorf("%s holds a text that is no reason", f.GetName())
		}
	}
	if got := metric(t, l, "boxgate_decisions_total", "action=other,reason=other,stage=other,verdict=deny"); got != 2*maxSeries+1 {
		t.Errorf("%v decisions are counted as other", got)
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	l := New(Options{PerBox: 10, MaxBoxes: 3})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			s := l.Subscribe(ctx, Filter{})
			for j := range 200 {
				l.Record(Event{Box: policy.BoxID(fmt.Sprint(i % 5)), Status: j})
				l.Recent(Filter{Denied: true})
				l.Forget("3")
			}
			cancel()
			for range s.Events() {
			}
		})
	}
	wg.Wait()
}

func TestLineReadsWell(t *testing.T) {
	t.Parallel()
	e := full()
	e.Time = time.Date(2026, 3, 1, 12, 30, 45, 0, time.Local)
	e.Name, e.Method, e.Path, e.Rule, e.Headers, e.Error, e.Conn, e.Count = "api.example.com", "GET", "/v1", "*.example.com", []string{"Authorization"}, "", "c1", 0
	want := `12:30:45.000  DENY   b1            http    refuse     GET api.example.com:443/v1          ` +
		`  not_allowed         rule="*.example.com"  addr=198.51.100.7  status=403  set=Authorization  in=1  out=2  took=3ms  phase=open  conn=c1`
	if got := Line(e); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := Line(Event{Verdict: policy.Allow, Protocol: policy.UDP, Addr: netip.MustParseAddr("2001:db8::1"), Port: 53}); !strings.Contains(got, "allow") || !strings.Contains(got, "udp/[2001:db8::1]:53") {
		t.Errorf("got %s", got)
	}
}

func FuzzEscape(f *testing.F) {
	f.Add(nasty, 10)
	f.Add("plain", 3)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = max(limit%100, 0)
		got := Escape(s, limit)
		assertHarmless(t, "Escape", got)
		if again := Escape(got, len(got)); again != got {
			t.Errorf("escaped twice: %q, then %q", got, again)
		}
		if len(got) > limit {
			t.Errorf("%d bytes, limit %d", len(got), limit)
		}
		if len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) && got != s {
			t.Errorf("%q became %q without need", s, got)
		}
	})
}

// TestNameOfTheBox checks that decisions have the name of their box, unless the name would need escaping.
func TestNameOfTheBox(t *testing.T) {
	t.Parallel()
	names := map[policy.BoxID]string{"b1": "web-1", "b2": "", "b3": "x\x1b[2J\",\"verdict\":\"allow"}
	l := New(Options{Name: func(id policy.BoxID) (string, bool) { name, known := names[id]; return name, known }})
	for _, id := range []policy.BoxID{"b1", "b2", "b3", "b4", ""} {
		l.Record(Event{Box: id, BoxName: "forged", Stage: policy.StageConn, Verdict: policy.Allow})
	}
	l.Flush()
	for id, want := range map[policy.BoxID]string{"b1": "web-1", "b2": "", "b3": "", "b4": ""} {
		got := l.Recent(Filter{Box: id})
		if len(got) != 1 || got[0].BoxName != want || want != "" && !strings.Contains(Line(got[0]), want) {
			t.Errorf("%s: %+v", id, got)
		}
	}
	if line := Line(Event{Box: "b1", BoxName: "\x1b]0;x\a"}); strings.ContainsAny(line, "\x1b\a") {
		t.Errorf("%q", line)
	}
}

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

func TestServerLogIsBoundedAndCounts(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zapcore.InfoLevel)
	taken := 0
	l := ServerLog(zap.New(core), func(line string) bool {
		if strings.HasPrefix(line, "take") {
			taken++
			return true
		}
		return false
	})
	for range 3000 {
		l.Print("something \x1b[2J happened")
		l.Print("take this")
	}
	if n := lines.Len(); n == 0 || n > 2*serverLineBurst || taken != 3000 {
		t.Errorf("%d lines were written and %d taken", n, taken)
	}
	if text := lines.All()[0].ContextMap()["message"]; text != `something \x1b[2J happened` {
		t.Errorf("message %q", text)
	}
}

// Requests to public URLs are counted once each, at their end, whatever the texts of their events.
func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	l := New(Options{})
	request := func(status int, by Credential, phase Phase) {
		l.Record(Event{Stage: policy.StageURL, Verdict: policy.Allow, Status: status, Credential: by, Phase: phase, Conn: string(phase)})
	}
	request(200, CredentialBearer, "")
	request(0, CredentialBearer, PhaseOpen)
	request(206, CredentialBearer, PhaseEnd)
	request(401, "", "")
	request(0, "", "")
	request(999, "", "")
	request(200, "of a box", "")
	l.Record(Event{Stage: policy.StageHTTP, Status: 200, Credential: CredentialBearer})
	for labels, want := range map[string]float64{
		"credential=bearer,status=2xx": 2, "credential=refused,status=4xx": 1, "credential=refused,status=none": 2, "credential=refused,status=2xx": -1,
		"credential=bearer,status=none": -1, // no such series
	} {
		if got := metric(t, l, "boxgate_url_requests_total", labels); got != want {
			t.Errorf("%s: %v, want %v", labels, got, want)
		}
	}
}

// Only the observer gets the parts of a request that a log must not have. What a policy could not judge is not passed on.
func TestSeenGoesToTheObserverOnly(t *testing.T) {
	var observed []Event
	l := New(Options{Observe: func(e Event) { observed = append(observed, e) }})
	seen := Seen{Known: true, Opening: policy.OpeningSecure, Source: NameSent, Query: "key=secret"}
	for _, path := range []string{"/plain", "/\x1b"} {
		l.Record(Event{Box: "b1", Stage: policy.StageHTTP, Path: path, Verdict: policy.Allow, Seen: seen})
	}
	if len(observed) != 2 || observed[0].Seen != seen || observed[1].Seen != (Seen{}) {
		t.Errorf("observed %+v", observed)
	}
	for _, e := range l.Recent(Filter{}) {
		if e.Seen != (Seen{}) {
			t.Errorf("the log has %+v", e.Seen)
		}
	}
}
