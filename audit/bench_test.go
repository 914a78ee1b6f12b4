package audit

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/audit/lines"
	"boxgate/policy"
	"boxgate/policy/name"
)

// cpu reports the processor time per operation in all threads, a figure that is stable on a busy machine.
func cpu(b *testing.B) (report func()) {
	spent := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ReportAllocs()
	before := spent()
	return func() { b.ReportMetric(float64(spent()-before)/float64(b.N), "cpu-ns/op") }
}

// request is an intercepted request, as the proxy records it.
func request() Event {
	return Event{
		Time: time.Now(), Box: "0a1b2c-sandbox", Stage: policy.StageHTTP, Protocol: policy.TCP, Name: "api.example.com",
		Addr: netip.MustParseAddr("198.51.100.7"), Claimed: netip.MustParseAddr("198.51.100.8"), Port: 443, Method: "GET",
		Path: "/v1/models/some/path", Verdict: policy.Allow, Action: ActionIntercept, Reason: name.ReasonAllowedDomain,
		Rule: "*.example.com", Version: 7, Headers: []string{"Authorization"}, BytesIn: 1024, BytesOut: 100,
		Duration: 513 * time.Microsecond, Status: 200,
	}
}

// BenchmarkRecord passes an event through the whole path of the gateway, to a file or a pipe that another process
// reads, and to the history file: a request like the previous one, a lookup of another name each time, and a refused
// request.
func BenchmarkRecord(b *testing.B) {
	names := make([]string, 4096)
	for i := range names {
		names[i] = fmt.Sprintf("name-%d.example.com", i)
	}
	n := 0
	lookup := func(e *Event) {
		e.Stage, e.Protocol, e.Action, e.Name = policy.StageDNS, policy.UDP, ActionForward, names[n%len(names)]
		e.Method, e.Path, e.Headers, e.Status = "", "", nil, 0
		n++
	}
	for _, what := range []struct {
		name   string
		change func(*Event)
	}{
		{"request", func(*Event) {}}, {"names", lookup},
		{"refusals", func(e *Event) {
			lookup(e)
			e.Verdict, e.Action, e.Reason = policy.Deny, ActionSink, name.ReasonNotAllowed
		}},
	} {
		b.Run(what.name+"/file", func(b *testing.B) { benchmarkRecord(b, toFile(b), what.change) })
		b.Run(what.name+"/pipe", func(b *testing.B) { benchmarkRecord(b, toReader(b), what.change) })
	}
}

func toFile(b *testing.B) *os.File {
	f, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return f
}

func toReader(b *testing.B) *os.File {
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	reader := exec.Command("cat")
	reader.Stdin = r
	if err := errors.Join(reader.Start(), r.Close()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(w.Close(), reader.Wait()); err != nil {
			b.Error(err)
		}
	})
	return w
}

func benchmarkRecord(b *testing.B, to *os.File, change func(*Event)) {
	out, kept := lines.New(lines.File(to)), lines.New(lines.File(toFile(b)))
	l := New(Options{Lines: out, History: kept})
	e := request()
	record := func() {
		change(&e)
		l.Record(e)
	}
	for range 512 {
		record()
	}
	report, n := cpu(b), 0
	for b.Loop() {
		record()
		if n++; n%200 == 0 { // some 80 KB, like a burst of a busy gateway
			for errors.Join(out.Sync(), kept.Sync()) != nil {
			}
		}
	}
	report()
	if lost := out.Lost() + kept.Lost(); lost > 0 {
		b.Errorf("%d lines were lost", lost)
	}
}

// BenchmarkRing adds events that all differ to a full ring.
func BenchmarkRing(b *testing.B) {
	for _, size := range []int{256, 1000, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			names := make([]string, 2*size)
			for i := range names {
				names[i] = fmt.Sprintf("name-%d.example.com", i)
			}
			r, e, i := &ring{}, request(), 0
			add := func() {
				e.Name = names[i%len(names)]
				e.Seq++
				r.add(&e, size)
				i++
			}
			for range names {
				add()
			}
			report := cpu(b)
			for b.Loop() {
				add()
			}
			report()
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	e := request()
	var c encoder
	var line []byte
	report := cpu(b)
	for b.Loop() {
		line = c.append(line[:0], &e, true, false)
	}
	report()
}
