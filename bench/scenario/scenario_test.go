package scenario

import (
	"slices"
	"testing"

	"boxgate/bench/load"
	"boxgate/bench/peer"
)

// Every goal, and every list of programs, must use existing names: a typo would skip a comparison.
func TestScenariosNameWhatExists(t *testing.T) {
	peers := peer.Root("/nonexistent").All(t.Context())
	others := []string{Direct, Bare, Tproxy}
	known := slices.Clone(others)
	for _, p := range peers {
		known = append(known, p.Name)
	}
	for _, s := range All(Long) {
		for _, g := range s.Targets {
			if g.Case != "" && !slices.ContainsFunc(s.Cases, func(c Case) bool { return c.Name == g.Case }) {
				t.Errorf("%s has a target for the case %q, which it lacks", s.ID, g.Case)
			}
			if g.Peer != "" && !slices.Contains(known, g.Peer) {
				t.Errorf("%s has a target against %q, which is not there", s.ID, g.Peer)
			}
			if g.Than != "" && !slices.ContainsFunc(s.Cases, func(c Case) bool { return c.Name == g.Than }) {
				t.Errorf("%s has a target against the case %q, which it lacks", s.ID, g.Than)
			}
		}
		for _, c := range s.Cases {
			for _, name := range c.Only {
				i := slices.IndexFunc(peers, func(p *peer.Peer) bool { return p.Name == name })
				if !slices.Contains(others, name) && (i < 0 || !peers[i].Plays(c.Role)) {
					t.Errorf("%s, %s: %s does not play the role %s", s.ID, c.Name, name, c.Role)
				}
			}
		}
	}
}

// Every program gets the same load: options set by a case do not depend on the program, and rounds differ only in
// names.
func TestCasesAreComplete(t *testing.T) {
	for _, s := range All(Long) {
		for _, c := range s.Cases {
			if (c.Set == nil) == (c.Own == nil) {
				t.Errorf("%s, %s: exactly one of Set and Own is needed", s.ID, c.Name)
				continue
			}
			if c.Set == nil {
				continue
			}
			a, b := common(c.Role), common(c.Role)
			c.Set(&a, 0)
			c.Set(&b, 1)
			if a.Kind == "" || a.Kind != b.Kind || a.Conns != b.Conns || a.Window != b.Window || a.Size != b.Size {
				t.Errorf("%s, %s: %+v and %+v", s.ID, c.Name, a, b)
			}
			if a.Count > 0 && a.First+a.Names > b.First {
				t.Errorf("%s, %s: names of one round are used again in the next", s.ID, c.Name)
			}
		}
	}
}

func TestSampleUnits(t *testing.T) {
	r := load.Result{Units: 2_000_000_000, Seconds: 4, CPU: 3_000_000_000}
	if s := sample(perByte, load.Download, r); s.Cost != 1.5 || s.Rate != 500 {
		t.Errorf("3 s of CPU for 2 GB in 4 s are %+v", s)
	}
	r.Units = 1000
	if s := sample(perRequest, load.KeepAlive, r); s.Cost != 3000 || s.Rate != 250 {
		t.Errorf("3 s of CPU for 1,000 requests in 4 s are %+v", s)
	}
}

func TestSoftirqsAreCountedByPacket(t *testing.T) {
	r := load.Result{Units: 1, Seconds: 1, CPU: 1, Softirq: 30_000_000, Packets: 10_000}
	if s := sample(perPacket, load.KeepAlive, r); s.Cost != 3 {
		t.Errorf("30 ms for 10,000 packets are %+v", s)
	}
}

func TestParseBenchmark(t *testing.T) {
	const text = "goos: linux\nBenchmarkDecide/name-2 \t 100\t 120.5 ns/op\t 0 B/op\t 0 allocs/op\nBenchmarkDecide/dns-2 \t 100\t 80 ns/op\t 16 B/op\t 2 allocs/op\nPASS\n"
	if ns, n, err := parseBenchmark(text); err != nil || ns != 120.5 || n != 2 {
		t.Errorf("%v ns, %v allocations, %v", ns, n, err)
	}
	if _, _, err := parseBenchmark("PASS\n"); err == nil {
		t.Error("no benchmark ran, and it is no error")
	}
}

func TestParseHops(t *testing.T) {
	const text = "=== RUN   TestCost\n    cost_test.go:221: calls one after the other: 1.46 times a bare hop (median of 15 rounds, 1.26 to 1.92); 340µs and 230µs\n" +
		"    cost_test.go:222: 16 calls at a time: 2.34 times a bare hop (median of 15 rounds, 0.97 to 1.68); 3.14ms and 2.35ms\n    cost_test.go:222: 16 calls at a time: more than 2 times a bare hop\n" +
		"    cost_test.go:223: an upload of 64 MiB: 1.16 times a bare hop (median of 5 rounds, 0.66 to 1.60); 377.92ms and 334.45ms\n"
	got := parseHops(text)
	if len(got) != len(hopCases) || got[hopCases[0]].Cost != 1.46 || got[hopCases[0]].P50 != 340 || got[hopCases[1]].Cost != 2.34 || got[hopCases[2]].P50 != 377920 {
		t.Errorf("%+v", got)
	}
}

func TestMemoryIsThatOfTheConnections(t *testing.T) {
	got := memoryGrowth(load.Result{Held: []load.Held{{Conns: 0, Bytes: 10 << 20}, {Conns: 512, Bytes: 18 << 20}}})
	if len(got) != 1 || got[0].Cost != 16 || got[0].Conns != 512 {
		t.Errorf("got %+v", got)
	}
}
