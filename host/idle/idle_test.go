package idle

import (
	"sync"
	"testing"
	"time"
)

// TestGate closes a gate while users come and go. A gate is never closed as idle with a user inside, and for a concurrent
// visit and close, at least one of the two notices the other.
func TestGate(t *testing.T) {
	t.Parallel()
	var g Gate
	if g.Enter() {
		t.Error("the zero value is open")
	}
	g.Open()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 2000 {
				if !g.Enter() {
					continue
				}
				if !g.IsOpen() && g.Idle(time.Now().Add(time.Hour)) {
					t.Error("it counts as idle with a user in it")
				}
				g.Leave()
			}
		})
	}
	for range 2000 {
		if g.CloseIdle(time.Now().Add(time.Hour)) {
			if n := g.visits.Load(); n != 0 {
				t.Error("it was closed during a visit")
			}
			g.Open()
		}
	}
	all.Wait()
}

func TestIdle(t *testing.T) {
	t.Parallel()
	future := time.Now().Add(time.Hour)
	for what, c := range map[string]struct {
		use  func(*Gate)
		idle bool
	}{
		"nobody":            {func(*Gate) {}, true},
		"a user":            {func(g *Gate) { g.Enter() }, false},
		"one who has left":  {func(g *Gate) { g.Enter(); g.Leave() }, true},
		"a visit":           {func(g *Gate) { g.Visit(80) }, false},
		"one that is over":  {func(g *Gate) { g.Visit(80); g.Depart() }, true},
		"bytes later still": {func(g *Gate) { g.Touch(future.Add(time.Hour)) }, false},
	} {
		var g Gate
		g.Open()
		c.use(&g)
		if got := g.CloseIdle(future); got != c.idle || g.IsOpen() == c.idle {
			t.Errorf("%s: idle %v, open %v", what, got, g.IsOpen())
		}
	}
}

// TestStarting: a program that listens on one port does not affect the other ports.
func TestStarting(t *testing.T) {
	t.Parallel()
	var g Gate
	g.Open()
	if !g.Visit(80) {
		t.Error("a box that was not just started counts as starting")
	}
	for range 2 {
		g.Started()
		if g.Visit(80) || g.Visit(81) {
			t.Error("a port counts as listening too early")
		}
		if g.Listening(80); !g.Visit(80) || g.Visit(81) {
			t.Error("port 80 counts as starting, or port 81 does not")
		}
	}
	if g.Starting(time.Now().Add(time.Hour), 81) {
		t.Error("it still counts as starting")
	}
}
