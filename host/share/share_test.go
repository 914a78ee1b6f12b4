package share

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"boxgate/config"
	"boxgate/internal/memory"
	"boxgate/preflight"
	"boxgate/proxy"
)

// TestEveryPartGetsItsShare: the descriptors of this process are divided, and the boxes' share leaves some for the
// gateway.
func TestEveryPartGetsItsShare(t *testing.T) {
	d, err := RaiseDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	var c proxy.Config
	d.Apply(&c)
	if c.MaxAllConns != d.conns || c.MaxAllUpstreams != d.upstreams || c.MaxPipes != d.pipes || c.MaxExtraAttempts <= 0 {
		t.Errorf("the proxy has %d connections, %d to servers, %d pipes, %d attempts", c.MaxAllConns, c.MaxAllUpstreams, c.MaxPipes, c.MaxExtraAttempts)
	}
	connections, requests := d.URLLimits()
	if connections != d.visitors || requests <= connections {
		t.Errorf("visitors have %d connections and %d requests", connections, requests)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Keyless(ln).Close(); err != nil {
		t.Error(err)
	}
}

// TestChecksCountTheBoxesOnDisk: limits that suit a few boxes cause warnings when there are many.
func TestChecksCountTheBoxesOnDisk(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.StateDir = t.TempDir()
	for name, check := range map[string]func(config.Config) error{"descriptors": CheckShares, "memory": CheckMemory} {
		cfg := cfg
		if cfg.StateDir = filepath.Join(cfg.StateDir, name); boxesOnDisk(cfg) != 0 {
			t.Error("there are boxes in a directory that does not exist")
		}
		before := len(preflight.Errors(check(cfg)))
		for i := range 3000 {
			if err := os.MkdirAll(filepath.Join(cfg.StateDir, "boxes", string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676))), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if after := len(preflight.Errors(check(cfg))); after == 0 || after < before {
			t.Errorf("%s: %d warnings, with 3000 boxes %d", name, before, after)
		}
	}
}

// TestMemoryIsShown: the metrics show held memory by purpose, and the total.
func TestMemoryIsShown(t *testing.T) {
	t.Parallel()
	m := MemoryOf(config.Default())
	budget := m.Budget()
	if budget.Total() != m.boxes || budget.Most() != m.box || m.box > m.boxes || m.boxes >= m.all {
		t.Errorf("of %d all boxes may use %d and one %d", m.all, budget.Total(), budget.Most())
	}
	if !budget.Account("one").Acquire(memory.TLS, 4096) {
		t.Fatal("there is no memory")
	}
	reg := prometheus.NewRegistry()
	if err := reg.Register(Metrics{Budget: budget}); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.Metric {
			key := f.GetName()
			for _, l := range metric.Label {
				key += " " + l.GetValue()
			}
			got[key] = metric.GetGauge().GetValue()
		}
	}
	if got["boxgate_memory_held_bytes "+memory.TLS.String()] != 4096 || got["boxgate_memory_budget_bytes"] != float64(m.boxes) {
		t.Errorf("%v", got)
	}
}

func TestDescriptorsAreSharedOutOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{fewestDescriptors, 4096, 65536, 1 << 20, 1 << 30} {
		d := shareDescriptors(n)
		sum := d.reserve + 4*d.visitors + 2*d.pipes + 2*d.conns + d.upstreams
		if sum > d.all || sum < d.all*9/10 || d.all > n || d.reserve < 100 || d.conns < 100 || d.visitors < 50 || d.pipes < 4 || d.DNSSockets() < 1 || 8*d.DNSSockets() > d.reserve {
			t.Errorf("of %d: %+v, together %d", n, d, sum)
		}
	}
}

// CheckShares warns about limits that boxes could not all use at once, and does not fail.
func TestCheckWarnsOfLimitsBeyondTheDescriptors(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	d := shareDescriptors(1 << 20)
	if err := sharesOf(cfg, d, 100); err != nil {
		t.Errorf("100 boxes with the defaults: %v", err)
	}
	err := sharesOf(cfg, d, 1000)
	if lacks := preflight.Errors(err); err == nil || len(lacks) != 2 || !strings.Contains(err.Error(), "limits.connections lets 1000 boxes open 2048000 connections") {
		t.Errorf("1000 boxes: %v", err)
	}
	for _, lack := range preflight.Errors(err) {
		if _, ok := lack.(preflight.Warning); !ok { //nolint:errorlint // it is what a check prints
			t.Errorf("not a warning: %v", lack)
		}
	}
}
