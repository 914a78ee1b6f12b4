package ssh

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"boxgate/internal/memory"
	"boxgate/internal/sshflow"
	"boxgate/policy/name"
	sshrule "boxgate/rule/ssh"
)

// A box that does not speak SSH, or stops in the middle of it, is disconnected after the handshake timeout, and the gateway
// has logged in nowhere.
func TestHandshakesThatDoNotEnd(t *testing.T) {
	t.Parallel()
	dialled := make(chan struct{}, 16)
	r := newRig(t, sshrule.Login{}, func(r *rig) {
		r.login.Handshake = time.Second
		r.login.Dial = func(context.Context) (net.Conn, error) {
			dialled <- struct{}{}
			return nil, errors.New("not to be dialled")
		}
	})
	for name, said := range map[string]string{
		"nothing": "", "half a version": "SSH-2.0", "version 1": "SSH-1.5-x\r\n", "a version alone": "SSH-2.0-x\r\n", "HTTP": "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"endless lines": strings.Repeat("x\r\n", 5000), "an endless line": strings.Repeat("x", 1<<20), "a huge packet": "SSH-2.0-x\r\n\xff\xff\xff\xff" + strings.Repeat("\x00", 1<<16),
		"garbage": "SSH-2.0-x\r\n\x00\x00\x00\x0c\x0a\x14" + strings.Repeat("\xa5", 4096),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", r.addr.String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			go func() { _, _ = io.WriteString(c, said) }()
			_, _ = io.Copy(io.Discard, c) // until the gateway closes the connection
		})
	}
	t.Cleanup(func() {
		if len(dialled) > 0 {
			t.Error("a server was dialled before the box had logged in")
		}
	})
}

func TestThousandsOfChannels(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, nil)
	client := r.client(t)
	open := 0
	var first gossh.Channel
	for range 3000 {
		channel, requests, err := client.OpenChannel("session", nil)
		if err != nil {
			continue
		}
		go gossh.DiscardRequests(requests)
		if open++; first == nil {
			first = channel
		}
	}
	if open != maxSessions {
		t.Errorf("%d sessions are open at the same time; want %d", open, maxSessions)
	}
	_ = first.Close()
	for { // the slot is free as soon as both sides have closed the session
		session, err := client.NewSession()
		if err == nil {
			if out, err := session.Output("echo ok"); string(out) != "ok\n" {
				t.Errorf("%q, %v", out, err)
			}
			return
		}
	}
}

// A box sends single bytes to a command that does not read: a window of two million packets. The gateway buffers a limited
// number, and all data arrives in the end.
func TestFloodOfSmallPackets(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, nil)
	client := r.client(t)
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	session.Stdout = &out
	stdin, err := session.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("while [ ! -e go ]; do sleep 0.1; done; wc -c"); err != nil {
		t.Fatal(err)
	}
	const bulk, singles = 2<<20 + 256<<10, 400_000
	sent := make(chan error, 1)
	go func() {
		_, err := stdin.Write(make([]byte, bulk))
		for range singles {
			if err == nil {
				_, err = stdin.Write([]byte{0})
			}
		}
		sent <- errors.Join(err, stdin.Close())
	}()
	var most int64
	for most < sshflow.Cost*sshflow.Most-2*sshflow.Step && len(sent) == 0 {
		most = max(most, r.budget.InUse(memory.Buffers))
		time.Sleep(time.Millisecond)
	}
	if most > sshflow.Cost*sshflow.Most {
		t.Errorf("%d bytes are kept", most)
	}
	if len(sent) > 0 {
		t.Error("everything was read although nothing was consumed")
	}
	if err := os.WriteFile(filepath.Join(r.server.Home, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := session.Wait(); err != nil || strings.TrimSpace(out.String()) != "2759296" {
		t.Errorf("%q arrived, %v", out.String(), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// Extended data from the box, which no command reads, is not buffered.
func TestExtendedDataFromTheBox(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, nil)
	channel, requests, err := r.client(t).OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	go gossh.DiscardRequests(requests)
	if n, err := channel.Stderr().Write(make([]byte, 8<<20)); n != 8<<20 || err != nil { // four windows
		t.Errorf("%d bytes, %v", n, err)
	}
}

// If the box has no memory left, connections and sessions are refused.
func TestMemoryOfABox(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, func(r *rig) {
		r.budget = memory.New(4*connCost, 4*connCost)
		r.login.Memory = r.budget.Account("box")
	})
	client := r.client(t)
	open := 0
	for range maxSessions {
		if _, requests, err := client.OpenChannel("session", nil); err == nil {
			go gossh.DiscardRequests(requests)
			open++
		}
	}
	if open == 0 || open == maxSessions {
		t.Errorf("%d sessions are open", open)
	}
	for range 8 {
		c, err := net.Dial("tcp", r.addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	for {
		var failure *Failure
		if err := r.failure(); errors.As(err, &failure) {
			if failure.Reason != name.ReasonLimit {
				t.Errorf("%v: %v", failure.Reason, failure)
			}
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A cut closes both sides of a connection.
func TestCut(t *testing.T) {
	t.Parallel()
	ctx, cut := context.WithCancel(t.Context())
	r := newRig(t, sshrule.Login{}, nil)
	ln := listen(t)
	served := make(chan error, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		served <- Serve(ctx, c, r.login)
	}()
	r.addr = ln.Addr().(*net.TCPAddr)
	session, err := r.client(t).NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Start("while kill -0 $PPID; do sleep 0.2; done"); err != nil {
		t.Fatal(err)
	}
	cut()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := session.Wait(); err == nil {
		t.Error("the command ended on its own")
	}
}

func TestIdleConnectionsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, sshrule.Login{}, func(r *rig) { r.login.Idle = 100 * time.Millisecond })
	if err := r.client(t).Wait(); err == nil {
		t.Error("the connection ended without an error")
	}
}
