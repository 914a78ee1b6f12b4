package dns

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"

	"boxgate/audit"
	"boxgate/audit/lines"
	"boxgate/policy"
)

// Variables that turn the test binary into another program for the benchmarks: a load generator ("address count names
// domain"), or an upstream server.
const (
	loadTarget   = "BOXGATE_TEST_DNS_LOAD"
	upstreamTest = "BOXGATE_TEST_DNS_UPSTREAM"
)

func TestMain(m *testing.M) {
	if os.Getenv(upstreamTest) != "" {
		answerAll()
		return
	}
	if target := os.Getenv(loadTarget); target != "" {
		if err := generateLoad(target); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// benchNames is the number of names that the load cycles through.
const benchNames = 1000

// newServed makes a server whose upstream knows benchNames names, and whose events go to a log as in production.
func newServed(b *testing.B) *bench {
	var records []string
	for i := range benchNames {
		records = append(records, fmt.Sprintf("n%d.example.com. 86400 IN A %s", i, goodV4))
	}
	out, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { out.Close() })
	s := newBench(b, domains("*.example.com"), newZone(b, records...), Limits{QueriesPerSecond: 1e9, Burst: 1 << 30})
	log := audit.New(audit.Options{Lines: lines.New(lines.File(out))})
	b.Cleanup(log.Flush)
	s.audit = log
	for i := range benchNames {
		s.ask(b, fmt.Sprintf("n%d.example.com", i), mdns.TypeA)
	}
	return s
}

// BenchmarkServeUDP measures answers through a socket, with the log: from the cache and the sink, which never wait, and
// from upstream. Another process generates the load: cpu-ns/op is the processor time of the server alone, including the
// kernel's.
func BenchmarkServeUDP(b *testing.B) {
	for what, domain := range map[string]string{"cached": "example.com", "sink": "evil.org"} {
		b.Run(what, func(b *testing.B) { newServed(b).measure(b, benchNames, domain) })
	}
	b.Run("forwarded", func(b *testing.B) {
		s := newServed(b)
		f, err := newForwarder(Config{Upstreams: []string{startUpstream(b)}, Log: zap.NewNop()})
		if err != nil {
			b.Fatal(err)
		}
		s.cache.upstream, s.up = f, f
		s.measure(b, b.N, fmt.Sprintf("%d.example.com", b.N))
	})
}

// measure runs b.N queries that cycle through so many names of a domain.
func (s *bench) measure(b *testing.B, names int, domain string) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.ServeUDP(ctx, pc) }()
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	load := exec.Command(os.Args[0])
	load.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %s", loadTarget, pc.LocalAddr(), b.N, names, domain))
	if out, err := load.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
	b.StopTimer()
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
}

// startUpstream runs a server that knows every name, and returns its address.
func startUpstream(b *testing.B) string {
	up := exec.Command(os.Args[0])
	up.Env = append(os.Environ(), upstreamTest+"=1")
	out, err := up.StdoutPipe()
	if err == nil {
		err = up.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = up.Process.Kill(); _ = up.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// answerAll answers every question with the same address, until the process is killed.
func answerAll() {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(pc.LocalAddr())
	_ = mdns.ActivateAndServe(nil, pc, mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		m := new(mdns.Msg).SetReply(q)
		m.Answer = []mdns.RR{mustRR(q.Question[0].Name + " 60 IN A " + goodV4)}
		_ = w.WriteMsg(m)
	}))
}

func processorTime(b *testing.B) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// generateLoad sends count queries, a hundred of them outstanding. Lost ones are repeated.
func generateLoad(target string) error {
	var address, domain string
	var count, names int
	if _, err := fmt.Sscan(target, &address, &count, &names, &domain); err != nil {
		return err
	}
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	queries := make([][]byte, names)
	for i := range queries {
		if queries[i], err = newQuery("n"+strconv.Itoa(i)+"."+domain, mdns.TypeA).Pack(); err != nil {
			return err
		}
		binary.BigEndian.PutUint16(queries[i], uint16(i))
	}
	buf := make([]byte, udpSize)
	for sent, answered := 0, 0; answered < count; {
		for ; sent < count && sent < answered+100; sent++ {
			if _, err := conn.Write(queries[sent%names]); err != nil {
				return err
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := conn.Read(buf); err != nil {
			sent = answered
			continue
		}
		answered++
	}
	return nil
}

// BenchmarkHandle measures the same without a socket or a log.
func BenchmarkHandle(b *testing.B) {
	for what, host := range map[string]string{"cached": "n1.example.com", "sink": "evil.org"} {
		b.Run(what, func(b *testing.B) {
			s := newServed(b)
			s.audit = recorderFunc(func() {})
			wire, err := newQuery(host, mdns.TypeA).Pack()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if s.Handle(context.Background(), s.box, policy.UDP, wire) == nil {
					b.Fatal("no answer")
				}
			}
		})
	}
}

// TestDirectAnswersAllocateNothing checks that direct answers allocate no more than the event costs its recorder.
func TestDirectAnswersAllocateNothing(t *testing.T) {
	b := newBench(t, domains("*.example.com"), newZone(t, "a.example.com. 3600 IN A "+goodV4, "a.example.com. 3600 IN AAAA "+goodV6,
		"c.example.com. 3600 IN CNAME x.cdn.net.", "x.cdn.net. 3600 IN A "+goodV4b), Limits{QueriesPerSecond: 1e9, Burst: 1 << 30})
	b.zone.full = true
	b.audit = recorderFunc(func() {})
	d, out := new(scratch), make([]byte, 0, udpSize)
	for _, q := range []*mdns.Msg{newQuery("a.example.com", mdns.TypeA), newQuery("A.example.COM", mdns.TypeAAAA), newQuery("c.example.com", mdns.TypeA),
		newQuery("none.example.com", mdns.TypeA), newQuery("evil.org", mdns.TypeA), newQuery("evil.org", mdns.TypeTXT)} {
		b.exchange(t, q, policy.UDP) // fill the cache
		wire, _ := q.Pack()
		allocs := testing.AllocsPerRun(100, func() {
			v := b.usages.admit(b.boxAt(b.box.V4), time.Now())
			if _, ok := b.answerDirectly(t.Context(), v, policy.UDP, wire, d, out); !ok {
				t.Errorf("declined: %v", q.Question)
			}
			v.release()
		})
		if allocs > 0 {
			t.Errorf("%v: %v allocations", q.Question, allocs)
		}
	}
}
