package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/policy"
)

func TestDescriptorsAreSharedOutOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{fewestDescriptors, 4096, 65536, 1 << 20, 1 << 30} {
		d := shareDescriptors(n)
		sum := d.reserve + 4*d.visitors + 2*d.pipes + 2*d.conns + d.upstreams
		if sum > d.all || sum < d.all*9/10 || d.all > n || d.reserve < 100 || d.conns < 100 || d.visitors < 50 || d.pipes < 4 {
			t.Errorf("of %d: %+v, together %d", n, d, sum)
		}
	}
}

// A check warns of limits that boxes at their most could not all use, and does not fail for it.
func TestCheckWarnsOfLimitsBeyondTheDescriptors(t *testing.T) {
	t.Parallel()
	cfg := defaultConfig()
	d := shareDescriptors(1 << 20)
	if err := sharesOf(cfg, d, 100); err != nil {
		t.Errorf("100 boxes with the defaults: %v", err)
	}
	err := sharesOf(cfg, d, 1000)
	if lacks := lacksOf(err); err == nil || len(lacks) != 2 || !strings.Contains(err.Error(), "limits.connections lets 1000 box(es) open 2048000 connections") {
		t.Errorf("1000 boxes: %v", err)
	}
	for _, lack := range lacksOf(err) {
		if _, ok := lack.(warning); !ok { //nolint:errorlint // it is what printFindings prints
			t.Errorf("not a warning: %v", lack)
		}
	}
	w := stoppedWorld(t, labOptions{change: func(c *config) { c.Limits.Connections = mostOfAnything }})
	if lacks := w.check(); len(lacks) > 0 {
		t.Errorf("a warning is a lack: %v", lacks)
	}
	cmd := w.command(t.Context(), "check", "--config", w.config)
	var out strings.Builder
	cmd.Stdout = &out
	if err := w.Net.Gateway().Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "warns  shares of boxes") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// One box holds as many tunnels as it may. Each costs the gateway two descriptors, and the others notice nothing.
func TestAttackBoxHoldsAllItsTunnels(t *testing.T) {
	t.Parallel()
	const most = 400
	w := newWorld(t, func(c *config) { c.Limits.Connections = most })
	stop := w.bystander()
	in := w.intrude(w.create(map[string]any{"network_policy": custom("www.example.com")}))
	to := netip.AddrPortFrom(in.resolve("www.example.com", "ip4"), 7)
	sockets, pipes := w.descriptors()
	since := time.Now()
	var held []net.Conn
	for range most {
		held = append(held, in.begin(in.dial(to), "\x00echo", true).Conn)
	}
	if c, err := in.connect(to); err == nil {
		if answer, reset := talk(c, "echo"); !reset {
			t.Errorf("one tunnel too many answers %q", answer)
		}
		c.Close()
	}
	in.denied(since, policy.StageConn, policy.ReasonLimit)
	w.until("idle tunnels hold two sockets each and no pipe", func() bool {
		s, p := w.descriptors()
		return s-sockets >= 2*most && s-sockets <= 2*most+60 && p-pipes <= 64
	})
	if n, _ := stop(); n < 4 {
		t.Errorf("the other box made %d requests", n)
	}
	for _, c := range held {
		c.Close()
	}
	w.until("the sockets come back", func() bool {
		s, _ := w.descriptors()
		return s-sockets < 60
	})
	w.nothingLeaks()
}

// descriptors counts the sockets and the ends of pipes that the gateway has open.
func (w *world) descriptors() (sockets, pipes int) {
	w.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", w.process.Process.Pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		to, err := os.Readlink(dir + "/" + e.Name())
		switch {
		case err != nil: // closed meanwhile
		case strings.HasPrefix(to, "socket:"):
			sockets++
		case strings.HasPrefix(to, "pipe:"):
			pipes++
		}
	}
	return sockets, pipes
}
