package tunnel

import (
	"io"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// BenchmarkSplice moves bytes through a tunnel, as one stream and as many short messages. The CPU time includes both ends,
// which are the same for every way of copying.
func BenchmarkSplice(b *testing.B) {
	p := NewPool(time.Hour, 512, zap.NewNop())
	b.Cleanup(p.Close)
	for name, size := range map[string]int{"stream": 128 << 10, "messages": 100} {
		b.Run(name, func(b *testing.B) {
			client, c := tcpPair(b)
			s, server := tcpPair(b)
			done := make(chan error, 1)
			go func() { done <- splice(p, c, s, newCounters()) }()
			go func() {
				if name == "stream" {
					_, _ = io.Copy(io.Discard, struct{ io.Reader }{server})
				} else {
					_, _ = io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server})
				}
				server.Close()
			}()
			buf := make([]byte, size)
			b.SetBytes(int64(size))
			before := processorTime(b)
			for b.Loop() {
				if _, err := client.Write(buf); err != nil {
					b.Fatal(err)
				}
				if name == "messages" {
					if _, err := io.ReadFull(client, buf); err != nil {
						b.Fatal(err)
					}
				}
			}
			_ = client.CloseWrite()
			_, _ = io.Copy(io.Discard, client)
			client.Close()
			if err := <-done; err != nil {
				b.Error(err)
			}
			gb := float64(b.N) * float64(size) / (1 << 30)
			b.ReportMetric((processorTime(b)-before).Seconds()/gb, "cpu-s/GiB")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
