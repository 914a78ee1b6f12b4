package etcdtest

import (
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Link is a way to a server that can be cut. It ends with the test.
type Link struct {
	to string

	mu     sync.Mutex
	cut    bool
	held   chan struct{} // closed by Release; nil: answers are not held
	conns  map[net.Conn]bool
	opened int
	path   string
}

// NewLink returns a link to the Unix socket of an endpoint.
func NewLink(t testing.TB, endpoint string) *Link {
	t.Helper()
	l := &Link{to: strings.TrimPrefix(endpoint, "unix://"), conns: map[net.Conn]bool{}, path: filepath.Join(t.TempDir(), "s:1")}
	ln, err := net.Listen("unix", l.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close(); l.Cut(); l.Release() })
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", l.to)
			if err != nil || !l.add(near, far) {
				_ = near.Close()
				continue
			}
			go l.forward(far, near, false)
			go l.forward(near, far, true)
		}
	}()
	return l
}

// Endpoint is the URL of the near end.
func (l *Link) Endpoint() string { return "unix://" + l.path }

// Opened returns the number of connections that were opened.
func (l *Link) Opened() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened
}

// Cut ends all connections, and each new one.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for c := range l.conns {
		_ = c.Close()
		delete(l.conns, c)
	}
}

// Heal ends the effect of [Link.Cut].
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

// Hold delays all answers of the server until [Link.Release].
func (l *Link) Hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = make(chan struct{})
}

// Release ends [Link.Hold].
func (l *Link) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		close(l.held)
	}
	l.held = nil
}

// add remembers connections for [Link.Cut]. false: the link is cut, and far is closed.
func (l *Link) add(near, far net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = far.Close()
		return false
	}
	l.conns[near], l.conns[far] = true, true
	l.opened++
	return true
}

func (l *Link) forward(to, from net.Conn, answers bool) {
	defer to.Close()
	for buffer := make([]byte, 64<<10); ; {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		l.mu.Lock()
		held := l.held
		l.mu.Unlock()
		if answers && held != nil {
			<-held
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
