package share

import (
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/preflight"
)

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
	if lacks := preflight.Errors(err); err == nil || len(lacks) != 2 || !strings.Contains(err.Error(), "limits.connections lets 1000 box(es) open 2048000 connections") {
		t.Errorf("1000 boxes: %v", err)
	}
	for _, lack := range preflight.Errors(err) {
		if _, ok := lack.(preflight.Warning); !ok { //nolint:errorlint // it is what a check prints
			t.Errorf("not a warning: %v", lack)
		}
	}
}
