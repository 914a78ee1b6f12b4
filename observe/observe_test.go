package observe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

var begin = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

func open(t *testing.T) *Log { return reopen(t, filepath.Join(t.TempDir(), "observations.db")) }

func reopen(t *testing.T, path string) *Log {
	t.Helper()
	l := New(Options{Path: path, Keep: 7 * 24 * time.Hour, Size: 64 << 20, Log: zap.NewNop()})
	l.wait = 50 * time.Millisecond
	t.Cleanup(func() { l.Close() })
	return l
}

// request returns an allowed request.
func request(host, path string, at time.Time) audit.Event {
	return audit.Event{
		Time: at, Box: "b1", Stage: policy.StageHTTP, Protocol: policy.TCP, Name: host, Addr: netip.MustParseAddr("192.0.2.1"), Port: 443,
		Method: "GET", Path: path, Verdict: policy.Allow, Action: audit.ActionIntercept, Reason: name.ReasonAllowedDomain, Rule: host,
		Version: 3, BytesIn: 100, BytesOut: 10,
	}
}

func of(t *testing.T, l *Log, id policy.BoxID) Summary {
	t.Helper()
	s, err := l.Of(id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDecisionsAreSummedUp(t *testing.T) {
	l := open(t)
	l.Observe(request("api.example.com", "/repos/7", begin))
	later := request("api.example.com", "/repos/8", begin.Add(time.Minute))
	later.Version, later.Addr = 4, netip.MustParseAddr("192.0.2.2")
	l.Observe(later)
	l.Observe(request("other.example.com", "/", begin.Add(time.Second)))
	other := request("api.example.com", "/repos/7", begin)
	other.Box = "b2"
	l.Observe(other)

	s := of(t, l, "b1")
	if len(s.Observations) != 2 || s.Overflow != 0 || s.Lost != 0 {
		t.Fatalf("got %+v", s)
	}
	o := s.Observations[0]
	if o.Name != "api.example.com" || o.Shape != "/repos/{n}" || o.Count != 2 || o.BytesIn != 200 || o.BytesOut != 20 || o.Version != 4 {
		t.Errorf("got %+v", o)
	}
	if !o.First.Equal(begin) || !o.Last.Equal(begin.Add(time.Minute)) {
		t.Errorf("seen from %v to %v", o.First, o.Last)
	}
	if fmt.Sprint(o.Paths) != "[/repos/7 /repos/8]" || fmt.Sprint(o.Addrs) != "[192.0.2.1 192.0.2.2]" || o.More || o.MoreAddr {
		t.Errorf("got %v %v", o.Paths, o.Addrs)
	}
	if n := len(of(t, l, "b2").Observations); n != 1 {
		t.Errorf("the other box has %d observations", n)
	}
	if n := len(of(t, l, "b3").Observations); n != 0 {
		t.Errorf("an unknown box has %d observations", n)
	}
}

func TestObservationsOutliveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "observations.db")
	l := reopen(t, path)
	l.Observe(request("api.example.com", "/a", begin))
	of(t, l, "b1") // written
	l.Observe(request("api.example.com", "/b", begin.Add(time.Hour)))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = reopen(t, path)
	l.Observe(request("api.example.com", "/a", begin.Add(2*time.Hour)))
	s := of(t, l, "b1")
	if len(s.Observations) != 2 {
		t.Fatalf("got %+v", s.Observations)
	}
	if o := s.Observations[0]; o.Shape != "/a" || o.Count != 2 || !o.First.Equal(begin) || !o.Last.Equal(begin.Add(2*time.Hour)) {
		t.Errorf("got %+v", o)
	}
}

// A decision whose traffic lasts is recorded when it begins and when it ends: it counts once, with the bytes of its end. If
// the policy cut it, that is a second decision.
func TestLastingTrafficCountsOnce(t *testing.T) {
	l := open(t)
	first := request("api.example.com", "/", begin)
	first.Phase, first.BytesIn, first.BytesOut = audit.PhaseOpen, 0, 0
	l.Observe(first)
	last := request("api.example.com", "/", begin.Add(time.Hour))
	last.Phase, last.BytesIn = audit.PhaseEnd, 5000
	l.Observe(last)
	cut := request("api.example.com", "/", begin.Add(time.Hour))
	cut.Phase, cut.Verdict, cut.Reason, cut.Action = audit.PhaseEnd, policy.Deny, name.ReasonPolicyChanged, audit.ActionRefuse
	l.Observe(cut)
	found := request("", "", begin)
	found.Stage, found.Phase, found.Action = policy.StageKernel, audit.PhaseOngoing, audit.ActionKernel
	l.Observe(found)

	for _, o := range of(t, l, "b1").Observations {
		want := uint64(1)
		if o.Stage == policy.StageKernel {
			want = 0
		}
		if o.Count != want {
			t.Errorf("%s %s counts %d", o.Stage, o.Verdict, o.Count)
		}
		if o.Stage == policy.StageHTTP && o.Verdict == policy.Allow && o.BytesIn != 5000 {
			t.Errorf("%d bytes", o.BytesIn)
		}
	}
}

func TestEventsThatAreNotKept(t *testing.T) {
	l := open(t)
	tested := request("api.example.com", "/", begin)
	tested.SelfTest = true
	l.Observe(tested)
	nobody := request("api.example.com", "/", begin)
	nobody.Box = ""
	l.Observe(nobody)
	if s := of(t, l, "b1"); len(s.Observations) != 0 {
		t.Errorf("got %+v", s)
	}
}

// Of a query the names of its parameters are kept, and never a value, wherever a client puts it.
func TestAttackQueriesAreKeptWithoutValues(t *testing.T) {
	l := open(t)
	for _, query := range []string{
		"page=1&per_page=20", "per_page=7&page=sk-secret", "", "key=sk-secret", "sk-secret", "secret", "a=1;sk-1234567890secret",
		strings.Repeat("s", 60) + "=1", "sk%2dsecret=1", "0123456789abcdef0123=1", strings.Repeat("a=1&", 40),
	} {
		e := request("api.example.com", "/", begin)
		e.Seen = audit.Seen{Known: true, Opening: policy.OpeningSecure, Source: audit.NameSent, Query: query}
		l.Observe(e)
	}
	s := of(t, l, "b1")
	if len(s.Observations) != 1 {
		t.Fatalf("got %+v", s)
	}
	o := s.Observations[0]
	if got := fmt.Sprintf("%q", o.Queries); got != `["page&per_page" "" "key"]` || !o.MoreQuery || o.Count != 11 {
		t.Errorf("got %q %v", o.Queries, o)
	}
	if seen := o.Seen(); seen != (audit.Seen{Known: true, Opening: policy.OpeningSecure, Source: audit.NameSent}) {
		t.Errorf("seen %+v", seen)
	}
	text, err := os.ReadFile(l.opts.Path)
	if err != nil || bytes.Contains(text, []byte("secret")) {
		t.Errorf("a value is on disk: %v", err)
	}
}

// FuzzParameterNames holds that no value of a query is kept, and that requests that differ in values only repeat each other.
func FuzzParameterNames(f *testing.F) {
	f.Add("page=1&per_page=20")
	f.Add("a=b=c&;=;&d")
	f.Fuzz(func(t *testing.T, query string) {
		names, whole := parameterNames(query)
		if len(names) > maxParameters*(maxParameter+1) || strings.Contains(names, "=") || !whole && names != "" {
			t.Errorf("%q: %q", query, names)
		}
		var other strings.Builder
		for pair := range strings.SplitAfterSeq(query, "&") {
			if name, _, valued := strings.Cut(pair, "="); valued && !strings.Contains(pair, ";") {
				other.WriteString(name + "=x")
				if strings.HasSuffix(pair, "&") {
					other.WriteByte('&')
				}
			} else {
				other.WriteString(pair)
			}
		}
		if again, _ := parameterNames(other.String()); again != names || !sameParameters(query, other.String()) {
			t.Errorf("%q has the names %q, and %q %q", query, names, other.String(), again)
		}
	})
}

// denied returns a refused DNS query.
func denied(n int) audit.Event {
	return audit.Event{Time: begin, Box: "b1", Stage: policy.StageDNS, Protocol: policy.UDP, Name: fmt.Sprintf("x%d.example.org", n),
		Verdict: policy.Deny, Action: audit.ActionSink, Reason: name.ReasonNotAllowed}
}

// observeAll observes events in pieces that the queue holds.
func observeAll(l *Log, n int, event func(int) audit.Event) {
	for i := range n {
		l.Observe(event(i))
		if i%512 == 511 {
			l.Flush()
		}
	}
	l.Flush()
}

// A box that asks for any number of refused names fills half of its places. Its allowed traffic keeps the others.
func TestAttackRefusalsDoNotDisplaceAllowedTraffic(t *testing.T) {
	l := open(t)
	observeAll(l, 3*MaxPerBox, denied)
	l.Observe(request("api.example.com", "/", begin))
	s := of(t, l, "b1")
	var refused uint64
	allowed := false
	for _, o := range s.Observations {
		if o.Verdict == policy.Allow {
			allowed = true
		} else {
			refused += o.Count
		}
	}
	if !allowed {
		t.Error("the allowed request is missing")
	}
	if refused != MaxPerBox/2 || s.Overflow != 3*MaxPerBox-MaxPerBox/2 || len(s.Observations) != MaxPerBox/2+1 {
		t.Errorf("%d observations, %d refused, %d overflow", len(s.Observations), refused, s.Overflow)
	}
}

func TestAllowedTrafficIsBounded(t *testing.T) {
	l := open(t)
	observeAll(l, MaxPerBox+100, func(n int) audit.Event { return request(fmt.Sprintf("h%d.example.com", n), "/", begin) })
	if s := of(t, l, "b1"); len(s.Observations) != MaxPerBox || s.Overflow != 100 {
		t.Errorf("%d observations, %d overflow", len(s.Observations), s.Overflow)
	}
	l.Observe(request("h0.example.com", "/", begin)) // known
	if s := of(t, l, "b1"); s.Overflow != 100 {
		t.Errorf("a known decision counts as overflow: %d", s.Overflow)
	}
}

// One box can fill the queue to a half and its share only, and every decision is kept or counted.
func TestAttackOneBoxFillsTheQueue(t *testing.T) {
	l := open(t)
	const flood = 3 * queueLength
	for n := range flood {
		l.Observe(denied(n))
	}
	other := request("api.example.com", "/", begin)
	other.Box = "b2"
	l.Observe(other)
	s := of(t, l, "b1")
	var count uint64
	for _, o := range s.Observations {
		count += o.Count
	}
	if s.Lost == 0 || count+s.Overflow+s.Lost != flood {
		t.Errorf("%d kept, %d overflow and %d lost of %d", count, s.Overflow, s.Lost, flood)
	}
	if s := of(t, l, "b2"); len(s.Observations) != 1 || s.Lost != 0 {
		t.Errorf("the other box: %+v", s)
	}
}

// TestAttackManyBoxesFillTheQueue: however many boxes fill the queue, another one keeps its decisions.
func TestAttackManyBoxesFillTheQueue(t *testing.T) {
	t.Parallel()
	q := newQueue()
	for n := range 3 * queueLength {
		e := denied(n)
		e.Box = policy.BoxID(fmt.Sprint("flood", n%7))
		q.add(&e)
	}
	for n := range queueLength / 16 {
		e := denied(n)
		e.Box = "other"
		q.add(&e)
	}
	if _, lost := q.take(); lost["other"] != 0 || lost["flood0"] == 0 {
		t.Errorf("lost: %v", lost)
	}
}

// TestAttackLongPaths: long paths do not make observations large, and the file does not grow until observations expire.
func TestAttackLongPaths(t *testing.T) {
	t.Parallel()
	l := open(t)
	l.opts.Size = 1 << 20
	for round := range maxExamples {
		observeAll(l, 1000, func(n int) audit.Event {
			return request(fmt.Sprintf("h%d.example.com", n), "/"+strings.Repeat("x", 1000)+fmt.Sprint(round), begin)
		})
	}
	if o := of(t, l, "b1").Observations[0]; len(o.Paths) != 2 || !o.More {
		t.Errorf("%d paths, more %t", len(o.Paths), o.More)
	}
	if _, total, err := l.file.sizes(); err != nil || total > 2*l.opts.Size {
		t.Errorf("%d bytes: %v", total, err)
	}
}

// TestAFileThatCannotBeOpenedStays: without descriptors, an intact file is not taken for a damaged one.
func TestAFileThatCannotBeOpenedStays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "observations.db")
	if err := os.Symlink(filepath.Base(path), path); err != nil { // the error is ELOOP
		t.Fatal(err)
	}
	l := reopen(t, path)
	l.Observe(request("api.example.com", "/", begin))
	if _, err := l.Of("b1"); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(path + DamagedSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("set aside: %v", err)
	}
}

func TestExamplesAreBounded(t *testing.T) {
	l := open(t)
	for n := range 2 * maxExamples {
		e := request("api.example.com", fmt.Sprintf("/item/%d", n), begin)
		e.Addr = netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})
		l.Observe(e)
		l.Flush()
	}
	s := of(t, l, "b1")
	if len(s.Observations) != 1 {
		t.Fatalf("got %+v", s)
	}
	if o := s.Observations[0]; len(o.Paths) != maxExamples || !o.More || len(o.Addrs) != maxExamples || !o.MoreAddr || o.Count != 2*maxExamples {
		t.Errorf("got %+v", o)
	}
}

func TestOldObservationsExpire(t *testing.T) {
	l := open(t)
	l.Observe(request("old.example.com", "/", begin))
	l.Observe(request("new.example.com", "/", begin.Add(6*24*time.Hour)))
	gone := request("old.example.com", "/", begin)
	gone.Box = "b2"
	l.Observe(gone)
	l.Flush()
	l.expire(begin.Add(8 * 24 * time.Hour))
	s := of(t, l, "b1")
	if len(s.Observations) != 1 || s.Observations[0].Name != "new.example.com" || !s.Since.Equal(begin) {
		t.Errorf("got %+v", s)
	}
	if s := of(t, l, "b2"); len(s.Observations) != 0 {
		t.Errorf("got %+v", s)
	}
}

// When the file is too large, the boxes with the most observations lose their oldest ones, and small boxes none.
func TestAttackOneBoxFillsTheFile(t *testing.T) {
	l := open(t)
	l.opts.Size = 200 << 10
	observeAll(l, MaxPerBox, func(n int) audit.Event {
		return request(fmt.Sprintf("h%d.example.com", n), "/", begin.Add(time.Duration(n)*time.Second))
	})
	small := request("api.example.com", "/", begin)
	small.Box = "b2"
	l.Observe(small)
	l.Flush()
	l.expire(begin)
	if s := of(t, l, "b2"); len(s.Observations) != 1 {
		t.Errorf("the small box: %+v", s)
	}
	s := of(t, l, "b1")
	if n := len(s.Observations); n == 0 || n == MaxPerBox || s.Since.IsZero() {
		t.Errorf("%d observations since %v", n, s.Since)
	}
	if first := s.Observations[0].Name; first != fmt.Sprintf("h%d.example.com", MaxPerBox-1) {
		t.Errorf("the latest is %s", first)
	}
	_, total, err := l.file.sizes()
	if err != nil || total > l.opts.Size {
		t.Errorf("%d bytes: %v", total, err)
	}
}

func TestDamagedFileIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "observations.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("damaged", 4096)), 0o600); err != nil {
		t.Fatal(err)
	}
	l := reopen(t, path)
	l.Observe(request("api.example.com", "/", begin))
	if s := of(t, l, "b1"); len(s.Observations) != 1 {
		t.Errorf("got %+v", s)
	}
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}
}

// A successor opens the file once its predecessor has closed it. Until then decisions stay in memory.
func TestSuccessorWaitsForTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "observations.db")
	before, after := reopen(t, path), reopen(t, path)
	before.Observe(request("api.example.com", "/", begin))
	before.Flush()
	after.Observe(request("api.example.com", "/", begin.Add(time.Second)))
	if _, err := after.Of("b1"); err == nil {
		t.Fatal("two processes have the file")
	}
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	before.Observe(request("late.example.com", "/", begin)) // dropped
	before.Flush()
	if s := of(t, after, "b1"); len(s.Observations) != 1 || s.Observations[0].Count != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestRunWritesWhatArrives(t *testing.T) {
	l := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { l.Run(ctx) })
	var senders sync.WaitGroup
	for range 4 {
		senders.Go(func() {
			for n := range 1000 {
				l.Observe(request(fmt.Sprintf("h%d.example.com", n%50), "/", begin))
			}
		})
	}
	senders.Wait()
	cancel()
	running.Wait()
	var count uint64
	s := of(t, l, "b1")
	for _, o := range s.Observations {
		count += o.Count
	}
	if count+s.Lost != 4000 || len(s.Observations) != 50 {
		t.Errorf("%d decisions, %d lost, %d observations", count, s.Lost, len(s.Observations))
	}
}

func TestShape(t *testing.T) {
	long := strings.Repeat("a", 40)
	for path, want := range map[string]string{
		"/":                                "/",
		"/v1/messages":                     "/v1/messages",
		"/repos/acme/site/issues/17":       "/repos/acme/site/issues/{n}",
		"/models/gpt-4":                    "/models/gpt-4",
		"/x/550e8400-e29b-41d4-a716-44665": "/x/{id}",
		"/x/8f14e45fceea167a5a36dedd4bea2": "/x/{id}",
		"/download/20260504":               "/download/{n}",
		"/x/" + long:                       "/x/{id}",
		"/a/b/c/d/e/f/g/h":                 "/a/b/c/d/e/f/g/h",
		"/a/b/c/d/e/f/g/h/i/j":             "/a/b/c/d/e/f/g/h/...",
		"/a/":                              "/a/",
		"//7":                              "//{n}",
		"*":                                "*",
	} {
		if got := Shape(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// FuzzShape holds that a shape is bounded and the shape of itself.
func FuzzShape(f *testing.F) {
	f.Add("/repos/1/2/3")
	f.Add("/a//b/0123456789abcdef0123456789abcdef/c")
	f.Fuzz(func(t *testing.T, path string) {
		s := Shape(path)
		if len(s) > (maxSegments+1)*(maxSegment+1)+4 {
			t.Errorf("%q has the shape %q", path, s)
		}
		if path != "" && strings.HasPrefix(path, "/") && Shape(s) != s {
			t.Errorf("%q has the shape %q, and that the shape %q", path, s, Shape(s))
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	l := New(Options{Log: zap.NewNop()})
	e := request("api.example.com", "/v1/messages", begin)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Observe(e)
		if i%4096 == 4095 {
			l.sum()
		}
	}
}

// While the disk is nearly full, sums stay in memory within their bounds, and are written later.
func TestObservationsLeaveTheReserve(t *testing.T) {
	l := open(t)
	full := errors.New("the disk is full")
	l.opts.CheckSpace = func(int64) error { return full }
	observeAll(l, MaxPerBox+maxRecent, denied)
	if len(l.recent["b1"].sums) != MaxPerBox || l.n > 2*maxRecent {
		t.Errorf("%d observations in memory, %d in all", len(l.recent["b1"].sums), l.n)
	}
	if s := of(t, l, "b1"); len(s.Observations) != 0 {
		t.Errorf("%d observations were written", len(s.Observations))
	}
	full = nil
	s := of(t, l, "b1")
	var count uint64
	for _, o := range s.Observations {
		count += o.Count
	}
	if count+s.Overflow != MaxPerBox+maxRecent {
		t.Errorf("%d kept and %d overflow", count, s.Overflow)
	}
}

// Equal decisions that arrive together take one place of the queue, and count each.
func TestRepeatedDecisionsShareAPlace(t *testing.T) {
	l := open(t)
	for n := range 3 * queueLength {
		l.Observe(request("api.example.com", "/", begin.Add(time.Duration(n)*time.Millisecond)))
	}
	s := of(t, l, "b1")
	if len(s.Observations) != 1 || s.Lost != 0 {
		t.Fatalf("got %+v", s)
	}
	o := s.Observations[0]
	if o.Count != 3*queueLength || o.BytesIn != 3*queueLength*100 || !o.First.Equal(begin) || !o.Last.After(begin) {
		t.Errorf("got %+v", o)
	}
}

// BenchmarkSecond is one second of a busy gateway: 10,000 decisions of 20 boxes with 2,000 different observations, summed up five times
// a second and written every fifth.
func BenchmarkSecond(b *testing.B) {
	l := New(Options{Path: filepath.Join(b.TempDir(), "observations.db"), Keep: 24 * time.Hour, Size: 64 << 20, Log: zap.NewNop()})
	defer l.Close()
	events := make([]audit.Event, 2000)
	for i := range events {
		events[i] = request(fmt.Sprintf("h%d.example.com", i%100), fmt.Sprintf("/v1/item%d/list", i/100%5), begin)
		events[i].Box, events[i].Port = policy.BoxID(fmt.Sprintf("b%d", i/100)), uint16(443+i/500)
		events[i].Seen = audit.Seen{Known: true, Opening: policy.OpeningSecure, Source: audit.NameSent, Query: "page=1&size=20"}
	}
	b.ReportAllocs()
	for second := 0; b.Loop(); second++ {
		for i := range 10_000 {
			l.Observe(events[(i*7919)%len(events)])
			if i%2000 == 1999 {
				l.sum()
			}
		}
		if second%5 == 4 {
			l.Flush()
		}
	}
}

// TestEventsAreAddedAsObservations: adding events one by one has the result of adding their observations, and keys in files of
// earlier versions stay what they were.
func TestEventsAreAddedAsObservations(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	for range 200 {
		first := request("api.example.com", "/a", begin)
		first.Box = "b1"
		one := Of(&first)
		two := Of(&first)
		for range 40 {
			e := first
			e.Path = pick("", "/a", "/b", "/"+strings.Repeat("x", random.IntN(maxPaths)), fmt.Sprint("/", random.IntN(30)))
			e.Seen = audit.Seen{Known: random.IntN(4) > 0, Query: pick("", "a=1", "b=2&a=1", "a=2&b=3", "a", "ab=1", "a=1&b", "c=1;a=2", fmt.Sprint("p", random.IntN(30), "=1"))}
			e.Time = begin.Add(time.Duration(random.IntN(100)-50) * time.Second)
			e.Count, e.BytesIn, e.Version = uint64(random.IntN(3)), int64(random.IntN(9)), uint64(random.IntN(9))
			e.Claimed = netip.AddrFrom4([4]byte{192, 0, 2, byte(random.IntN(20))})
			e.Phase = []audit.Phase{"", audit.PhaseOngoing, audit.PhaseEnd}[random.IntN(3)]
			at := e.Time.Add(-time.Duration(random.IntN(100)) * time.Second)
			of := Of(&e)
			of.First = at
			one.add(&of)
			two.addEvent(&e, at)
			if !reflect.DeepEqual(one, two) {
				t.Fatalf("added as an observation\n%+v\nas an event\n%+v", one, two)
			}
		}
		k := one.Key
		k.Name, k.Rule, k.Method = pick("a", "\"\\", "\x00\xff", "ü\u202e"), pick("", "*.a b"), pick("GET", "")
		if random.IntN(2) == 0 {
			k.Addr = netip.MustParseAddr(pick("192.0.2.1", "2001:db8::1"))
		}
		h := sha256.New()
		fmt.Fprintf(h, "%q %q %q %v %d %q %q %d %q %q %q %q %q %v", k.Stage, k.Protocol, k.Name, k.Addr, k.Port, k.Method, k.Shape, k.Verdict, k.Action, k.Reason, k.Rule, k.Opening, k.Source, k.Proxied)
		if got := digest(&k); !bytes.Equal(got, h.Sum(nil)[:16]) {
			t.Fatalf("the digest of %+v is another", k)
		}
	}
}
