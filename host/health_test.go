package host

import (
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"boxgate/internal/acceptor"
)

// TestNotReadyWhileAListenerDoesNotAccept: readiness, the metrics and the log reflect whether this process accepts
// connections on each listener, not whether the kernel does.
func TestNotReadyWhileAListenerDoesNotAccept(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zap.InfoLevel)
	s := &serving{log: zap.New(core), timeout: time.Second}
	listen := func(name string) *acceptor.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		l := tryable(ln)
		s.add(name, l, nil, func() (int, int) { return 2, 8 })
		return l
	}
	accept := func(ln net.Listener) {
		for {
			if _, err := ln.Accept(); err != nil {
				return
			}
		}
	}
	look := func() error { // without the cached result
		s.checking.Lock()
		defer s.checking.Unlock()
		s.checked = s.checked.Add(-acceptValid)
		return s.checkLocked(t.Context())
	}
	good, bad := listen("good"), listen("bad")
	go accept(good)
	for range 2 {
		if err := look(); err == nil || !strings.Contains(err.Error(), "bad at "+bad.Addr().String()) || strings.Contains(err.Error(), "good") {
			t.Errorf("while one does not accept: %v", err)
		}
	}
	if n := logged.FilterMessageSnippet("does not accept").Len(); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
	states := byName(s.states(t.Context()))
	if b := states["bad"]; b.Accepts || !states["good"].Accepts || b.Connections != 2 || b.Limit != 8 {
		t.Errorf("%+v", states)
	}
	go accept(bad)
	if err := look(); err != nil {
		t.Errorf("once both accept: %v", err)
	}
	if logged.FilterMessageSnippet("accepts connections again").Len() != 1 {
		t.Errorf("%v", logged.All())
	}
	good.Close()
	if err := s.check(t.Context()); err != nil {
		t.Errorf("the cached result was not used: %v", err)
	}
	s.stopChecks()
	if err := look(); err == nil {
		t.Error("ready while the gateway stops")
	}
	if logged.FilterMessageSnippet("does not accept").Len() != 1 {
		t.Error("a stopping gateway logged a failed listener")
	}
}
