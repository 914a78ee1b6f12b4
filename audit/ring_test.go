package audit

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"boxgate/audit/lines"
	"boxgate/policy"
)

// plain is a simple ring that searches linearly.
type plain struct {
	events   []Event // in order of arrival
	repeated []uint64
}

func (p *plain) likes(e *Event) (seqs []uint64) {
	for i := range p.events {
		if sameKind(&p.events[i], e) {
			seqs = append(seqs, p.events[i].Seq)
		}
	}
	return seqs
}

func (p *plain) add(e Event, limit int) {
	if len(p.events) >= limit {
		p.evict(p.least(&e, limit))
	}
	if before := p.likes(&e); len(before) > 0 {
		p.repeated = append(p.repeated, before[len(before)-1])
	}
	p.events = append(p.events, e)
}

func (p *plain) least(e *Event, limit int) uint64 {
	if same := p.likes(e); len(same) > 1 {
		return same[0]
	}
	if len(p.repeated) > 0 {
		return p.repeated[0]
	}
	var of [weights][]uint64
	for i := range p.events {
		w := weightOf(&p.events[i])
		of[w] = append(of[w], p.events[i].Seq)
	}
	w := weightOf(e)
	if len(of[w]) < max(limit/int(weights), 1) {
		for other := range weights {
			if len(of[other]) > len(of[w]) {
				w = other
			}
		}
	}
	return of[w][0]
}

func (p *plain) evict(seq uint64) {
	i := slices.IndexFunc(p.events, func(e Event) bool { return e.Seq == seq })
	gone := p.events[i]
	p.events = slices.Delete(p.events, i, i+1)
	p.repeated = slices.DeleteFunc(p.repeated, func(n uint64) bool { return n == seq })
	for i := len(p.events) - 1; i >= 0; i-- {
		if like := &p.events[i]; sameKind(like, &gone) {
			like.Count = max(like.Count, 1) + max(gone.Count, 1)
			like.BytesIn += gone.BytesIn
			like.BytesOut += gone.BytesOut
			return
		}
	}
}

// anyEvent is one of a few hundred kinds, of every weight, some of them frequent.
func anyEvent(seq uint64, variety int) Event {
	e := Event{Seq: seq, Box: "b", Name: fmt.Sprint(min(rand.IntN(variety), rand.IntN(variety))), BytesIn: 1, Count: uint64(rand.IntN(3))}
	switch rand.IntN(4) {
	case 0:
		e.Verdict = policy.Allow
	case 1:
		e.Verdict, e.Stage, e.Protocol, e.Phase = policy.Allow, policy.StageKernel, policy.TCP, PhaseOpen
	case 2:
		e.Verdict, e.Stage, e.Protocol, e.Phase, e.Answered = policy.Allow, policy.StageKernel, policy.TCP, PhaseEnd, rand.IntN(2) == 0
	}
	return e
}

// The ring keeps the same events as the simple one.
func TestRingAgainstAPlainOne(t *testing.T) {
	t.Parallel()
	for run := range 30 {
		limit, variety := 1+rand.IntN(40), 1+rand.IntN(300)
		var r ring
		var p plain
		for seq := uint64(1); seq <= 1500; seq++ {
			e := anyEvent(seq, variety)
			r.add(&e, limit)
			p.add(e, limit)
			if seq%50 != 0 {
				continue
			}
			got := r.appendMatching(nil, Filter{})
			slices.SortFunc(got, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
			same := func(a, b Event) bool {
				return a.Seq == b.Seq && a.Count == b.Count && a.BytesIn == b.BytesIn && sameKind(&a, &b)
			}
			if !slices.EqualFunc(got, p.events, same) || r.n != len(got) || r.latest.Seq != seq {
				t.Fatalf("run %d, event %d, limit %d: got\n%v\nwant\n%v", run, seq, limit, got, p.events)
			}
		}
	}
}

// Readers of events do not see later changes of the header names by the event's maker or by another reader.
func TestRecordKeepsNothingOfTheMaker(t *testing.T) {
	t.Parallel()
	l := New(Options{PerBox: 2})
	names := []string{"Authorization"}
	stream := l.Subscribe(t.Context(), Filter{})
	e := request()
	e.Headers = names
	l.Record(e)
	refused := denial("a")
	refused.Headers = names
	l.Record(refused)
	l.Record(refused) // coalesced
	names[0] = "changed"
	kept := l.Recent(Filter{})
	l.Flush()
	for range 3 {
		if got := <-stream.Events(); got.Headers[0] != "Authorization" {
			t.Errorf("a reader gets %q", got.Headers)
		}
	}
	for range 3 { // their memory is reused
		other := request()
		other.Headers = []string{"X-Other"}
		l.Record(other)
	}
	for _, e := range kept {
		if e.Headers[0] != "Authorization" {
			t.Errorf("%q is remembered", e.Headers)
		}
	}
}

// A recently used box is kept in preference to an older one.
func TestRecentBoxesAreKept(t *testing.T) {
	t.Parallel()
	l := New(Options{MaxBoxes: 2})
	for _, box := range []policy.BoxID{"a", "b", "a", "c", "a", "d"} {
		l.Record(Event{Box: box, Verdict: policy.Allow, Name: string(box)})
	}
	if got := emitted(l); got != "a×1 a×1 a×1 d×1" {
		t.Errorf("remembered %s", got)
	}
	if !l.Missing(Filter{After: 3}) || l.Missing(Filter{After: 4}) {
		t.Error("what was forgotten with a box is not missing, or more than that")
	}
}

func TestRecordDoesNotAllocate(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var observed uint64
	l := New(Options{Lines: lines.New(lines.File(f)), PerBox: 16, Observe: func(e Event) { observed += uint64(len(e.Path)) }})
	e := request()
	paths := make([]string, 64)
	for i := range paths {
		paths[i] = fmt.Sprint("/", i)
	}
	i := 0
	record := func() {
		e.Path = paths[i%len(paths)]
		l.Record(e)
		i++
	}
	for range 200 {
		record()
	}
	if n := testing.AllocsPerRun(1000, record); n > 0 {
		t.Errorf("an event costs %v allocations", n)
	}
}
