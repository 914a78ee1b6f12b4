package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"boxgate/policy"
)

// crowd adds boxes, each with a plan of its own, in transactions of a hundred.
func crowd(b *testing.B, tbl *Table, n int) {
	b.Helper()
	var list []Registration
	var changes []Change
	for i := range n {
		id := policy.BoxID(fmt.Sprintf("crowd-%d", i))
		box := NewEntry(id, netip.AddrFrom4([4]byte{10, 77, byte(1 + i/250), byte(i % 250)}), netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 13: 1, 14: byte(i >> 8), 15: byte(i)}))
		list = append(list, Registration{Entry: &box})
		changes = append(changes, Change{&box, many(10, i)})
	}
	for chunk := range slices.Chunk(list, 100) {
		if err := tbl.Register(chunk...); err != nil {
			b.Fatal(err)
		}
	}
	for chunk := range slices.Chunk(changes, 100) {
		if err := tbl.Replace(b.Context(), chunk...); err != nil {
			b.Fatal(err)
		}
	}
}

// many returns a plan with n networks that do not touch. Plans with different seeds differ.
func many(n, seed int) policy.KernelPlan {
	p := opening("198.51.100.0/24")
	p.SteerOther.Ports = []uint16{80, 443}
	for i := range n {
		p.Allowed = append(p.Allowed, netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + byte(i>>16), byte(i >> 8), byte(i), 0}), 25))
	}
	p.Allowed = append(p.Allowed, netip.PrefixFrom(netip.AddrFrom4([4]byte{21, byte(seed >> 16), byte(seed >> 8), byte(seed)}), 32))
	return p
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkGrowth measures the changes of one box's plan among others.
func BenchmarkGrowth(b *testing.B) {
	for _, boxes := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("boxes=%d", boxes), func(b *testing.B) {
			tbl, box := newTable(b)
			start, cpu := time.Now(), cpuTime()
			crowd(b, tbl, boxes)
			all, allCPU := time.Since(start), cpuTime()-cpu
			b.Run("attach", func(b *testing.B) {
				cpu := cpuTime()
				for b.Loop() {
					e := NewEntry("another", netip.MustParseAddr("10.77.0.99"), netip.MustParseAddr("fd77::99"))
					if err := tbl.Register(Registration{Entry: &e}); err != nil {
						b.Fatal(err)
					}
					if err := tbl.Unregister(nil, &e); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-us/op")
				b.ReportMetric(float64(all.Milliseconds()), "start-ms")
				b.ReportMetric(float64(allCPU.Milliseconds()), "start-cpu-ms")
			})
			for _, rules := range []int{10, 100, 1000, 10_000} {
				b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
					cpu, seed := cpuTime(), 1<<20
					var took []time.Duration
					for b.Loop() {
						seed++
						begin := time.Now()
						if err := tbl.Replace(b.Context(), Change{box, many(rules, seed)}); err != nil {
							b.Fatal(err)
						}
						tbl.Collect()
						took = append(took, time.Since(begin))
					}
					slices.Sort(took)
					b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-us/op")
					b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
					b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
				})
			}
		})
	}
}
