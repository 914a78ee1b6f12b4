package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"boxgate/audit"
	"boxgate/policy"
)

// loadTarget makes the test binary a load generator: "address count domain".
const loadTarget = "BOXGATE_TEST_DNS_LOAD"

func TestMain(m *testing.M) {
	if target := os.Getenv(loadTarget); target != "" {
		if err := generateLoad(target); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// benchNames is how many names the load asks for in turn.
const benchNames = 1000

// newServed makes a server whose upstream knows benchNames names, and whose events go to a log as in production.
func newServed(b *testing.B) *bench {
	var lines []string
	for i := range benchNames {
		lines = append(lines, fmt.Sprintf("n%d.example.com. 86400 IN A %s", i, goodV4))
	}
	out, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { out.Close() })
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), out, zap.InfoLevel)
	s := newBench(b, domains("*.example.com"), newZone(b, lines...), Limits{QueriesPerSecond: 1e9, Burst: 1 << 30})
	log := audit.New(audit.Options{Logger: zap.New(core)})
	b.Cleanup(log.Flush)
	s.audit = log
	for i := range benchNames {
		s.ask(b, fmt.Sprintf("n%d.example.com", i), mdns.TypeA)
	}
	return s
}

// BenchmarkServeUDP measures the answers that never wait, from the cache and the sink, through a socket and with the log.
// The load comes from another process: cpu-ns/op is processor time of the server alone, the kernel's included.
func BenchmarkServeUDP(b *testing.B) {
	for what, domain := range map[string]string{"cached": "example.com", "sink": "evil.org"} {
		b.Run(what, func(b *testing.B) {
			s := newServed(b)
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
			load.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", loadTarget, pc.LocalAddr(), b.N, domain))
			if out, err := load.CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
			b.StopTimer()
			cancel()
			if err := <-done; err != nil {
				b.Error(err)
			}
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// generateLoad asks count queries, a hundred of them outstanding. Those that are lost are asked again.
func generateLoad(target string) error {
	var address, domain string
	var count int
	if _, err := fmt.Sscan(target, &address, &count, &domain); err != nil {
		return err
	}
	conn, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	queries := make([][]byte, benchNames)
	for i := range queries {
		if queries[i], err = newQuery("n"+strconv.Itoa(i)+"."+domain, mdns.TypeA).Pack(); err != nil {
			return err
		}
		binary.BigEndian.PutUint16(queries[i], uint16(i))
	}
	buf := make([]byte, udpSize)
	for sent, answered := 0, 0; answered < count; {
		for ; sent < count && sent < answered+100; sent++ {
			if _, err := conn.Write(queries[sent%benchNames]); err != nil {
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

// BenchmarkHandle measures the same without a socket and a log.
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
