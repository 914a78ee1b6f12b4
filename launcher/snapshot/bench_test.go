package snapshot

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"boxgate/launcher/files"
)

// BenchmarkCapture measures how long a capture takes, and how long the box is frozen, by the size of its files.
func BenchmarkCapture(b *testing.B) {
	for _, c := range []struct{ files, size int }{{10, 4 << 10}, {1000, 10 << 10}, {20_000, 10 << 10}, {4, 64 << 20}} {
		b.Run(fmt.Sprintf("%dx%dKiB", c.files, c.size>>10), func(b *testing.B) {
			upper := b.TempDir()
			data := make([]byte, c.size)
			for i := range data {
				data[i] = byte(i * i >> 7)
			}
			for i := range c.files {
				dir := filepath.Join(upper, fmt.Sprint(i/100))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), data, 0o600); err != nil {
					b.Fatal(err)
				}
			}
			var frozen time.Duration
			b.ResetTimer()
			for i := range b.N {
				to := filepath.Join(b.TempDir(), fmt.Sprint(i))
				r, err := Capture(b.Context(), upper, testIDs, to, wide, unfrozen)
				if err != nil {
					b.Fatal(err)
				}
				frozen += r.Frozen
				b.StopTimer()
				if err := files.RemoveTree(b.Context(), to); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(frozen.Microseconds())/1000/float64(b.N), "frozen-ms/op")
		})
	}
}
