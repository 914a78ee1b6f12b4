package dns

import (
	"context"
	"testing"

	mdns "github.com/miekg/dns"

	"boxgate/policy"
)

// BenchmarkHandle measures the answers that never wait: from the cache, and the sink.
func BenchmarkHandle(b *testing.B) {
	for what, host := range map[string]string{"cached": "a.example.com", "sink": "evil.org"} {
		b.Run(what, func(b *testing.B) {
			s := newBench(b, domains("*.example.com"), newZone(b, "a.example.com. 86400 IN A "+goodV4), Limits{QueriesPerSecond: 1e9, Burst: 1 << 30})
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
