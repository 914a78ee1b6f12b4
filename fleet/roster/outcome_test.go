package roster

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/fleet"
	"boxgate/fleet/etcdtest"
)

// deaf forwards connections to an etcd server. While it is deaf it forwards no answers, and ends the connections when cut is called.
type deaf struct {
	is  atomic.Bool
	cut chan struct{}
}

// listen returns the endpoint of a listener that forwards to an endpoint, both Unix sockets.
func (d *deaf) listen(t *testing.T, to string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s:1")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", strings.TrimPrefix(to, "unix://"))
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
			go d.answer(near, far)
		}
	}()
	return "unix://" + path
}

func (d *deaf) answer(near, far net.Conn) {
	defer near.Close()
	for buffer := make([]byte, 64<<10); ; {
		n, err := far.Read(buffer)
		if err != nil {
			return
		}
		if d.is.Load() {
			<-d.cut
			return
		}
		if _, err := near.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestLostAnswer: the connection ends between the transaction that makes the host a member and its answer. The error leaves the outcome open,
// so that the host keeps its identity, with which it is a member.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	d := &deaf{cut: make(chan struct{})}
	client, err := fleet.Dial(fleet.Access{Endpoints: []string{d.listen(t, server.Endpoint())}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r, direct := Roster{client, "test"}, Roster{server.Client(), "test"}
	var kept fleet.Identity
	go func() {
		for { // until the founding is in etcd
			if _, err := direct.Founding(t.Context()); err == nil || t.Context().Err() != nil {
				close(d.cut)
				return
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Get(ctx, "connected"); err != nil {
		t.Fatal(err)
	}
	_, err = r.Init(ctx, Machine{"a1b2c3", "first", func(id fleet.Identity) error {
		kept = id
		d.is.Store(true)
		return nil
	}})
	if ctx.Err() != nil || !errors.Is(err, fleet.ErrUnreachable) {
		t.Errorf("%v, %v", err, ctx.Err())
	}
	if is, err := direct.IsMember(t.Context(), kept); !is || err != nil {
		t.Errorf("member %v, %v", is, err)
	}
}
