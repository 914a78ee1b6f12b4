package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// passing is a socket that successive servers use, and a client of it.
type passing struct {
	kept   *os.File // the other process's copy
	client net.Conn
}

func newPassing(t *testing.T) *passing {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	kept, err := pc.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	client, err := net.Dial("udp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return &passing{kept, client}
}

// serve passes the socket to a server, as to the next process, and returns a channel that is closed when serving has
// ended.
func (p *passing) serve(ctx context.Context, t *testing.T, s *Server) <-chan error {
	t.Helper()
	if err := ResumeSocket(p.kept); err != nil {
		t.Fatal(err)
	}
	pc, err := net.FilePacketConn(p.kept)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.ServeUDP(ctx, pc) }()
	return done
}

// state returns the socket's state as seen by a poller.
func (p *passing) state(t *testing.T) (state int16) {
	t.Helper()
	if err := control(p.kept, func(fd int) error {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		_, err := unix.Poll(fds, 0)
		for errors.Is(err, unix.EINTR) { // interrupted by the signal that restarts the server's reads
			_, err = unix.Poll(fds, 0)
		}
		state = fds[0].Revents
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return state
}

// ask sends queries with IDs in this range.
func (p *passing) ask(t *testing.T, name string, from, to int) {
	t.Helper()
	for id := from; id < to; id++ {
		q := newQuery(name, mdns.TypeA)
		q.Id = uint16(id)
		wire, err := q.Pack()
		if err == nil {
			_, err = p.client.Write(wire)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// answers reads one answer to each of the queries, in any order.
func (p *passing) answers(from, to int, want func(*mdns.Msg) error) error {
	missing := map[uint16]bool{}
	for id := from; id < to; id++ {
		missing[uint16(id)] = true
	}
	_ = p.client.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, udpSize)
	for len(missing) > 0 {
		n, err := p.client.Read(buf)
		if err != nil {
			return fmt.Errorf("%d of %d queries are not answered: %w", len(missing), to-from, err)
		}
		m := new(mdns.Msg)
		if err := m.Unpack(buf[:n]); err != nil {
			return err
		}
		if !missing[m.Id] {
			return fmt.Errorf("an answer to %d, which was not asked or is answered already", m.Id)
		}
		if err := want(m); err != nil {
			return err
		}
		delete(missing, m.Id)
	}
	return nil
}

func answered(m *mdns.Msg) error {
	if m.Rcode != mdns.RcodeSuccess || len(m.Answer) != 1 {
		return fmt.Errorf("got %v", m)
	}
	return nil
}

// ended waits for an end.
func ended(t *testing.T, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s does not end", what)
	}
}

// stopping are the ways to end a server.
var stopping = map[string]func(s *Server, cancel func()){
	"retired": func(s *Server, _ func()) { s.retire() },
	"stopped": func(_ *Server, cancel func()) { cancel() },
}

// TestAServerThatEndsAnswersWhatItHasRead checks that this includes the query read last, and that the next server
// answers the rest.
func TestAServerThatEndsAnswersWhatItHasRead(t *testing.T) {
	t.Parallel()
	for name, stop := range stopping {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPassing(t)
			const queries = 3*batchSize + 1 // more than one batch
			p.ask(t, "denied.example.com", 0, queries)
			first := newBench(t, domains("a.example.com"), newZone(t))
			ctx, cancel := context.WithCancel(t.Context())
			stop(first.Server, cancel)
			ended(t, "the first server", p.serve(ctx, t, first.Server))
			cancel()
			next := newBench(t, domains("a.example.com"), newZone(t))
			ctx, cancel = context.WithCancel(t.Context())
			done := p.serve(ctx, t, next.Server)
			if err := p.answers(0, queries, answered); err != nil {
				t.Error(err)
			}
			cancel()
			ended(t, "the next server", done)
		})
	}
}

// TestAServerThatEndsLeavesItsSocketUsable checks that, even if no query arrives while the server ends, the next one
// receives queries and answers.
func TestAServerThatEndsLeavesItsSocketUsable(t *testing.T) {
	t.Parallel()
	for name, stop := range stopping {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPassing(t)
			for i := range 5 {
				b := newBench(t, domains("a.example.com"), newZone(t))
				ctx, cancel := context.WithCancel(t.Context())
				done := p.serve(ctx, t, b.Server)
				p.ask(t, "denied.example.com", i, i+1)
				if err := p.answers(i, i+1, answered); err != nil {
					t.Fatal(err)
				}
				stop(b.Server, cancel) // while it waits for the next query, or is about to
				ended(t, "the server", done)
				cancel()
				if state := p.state(t); state != 0 {
					t.Fatalf("nothing has arrived, and the socket is in the state %#x: it is shut down", state)
				}
			}
		})
	}
}

// TestRetiringWaitsForNoLookup checks that retiring returns during a lookup, so that another process can read the
// socket, and that the query is answered afterwards.
func TestRetiringWaitsForNoLookup(t *testing.T) {
	t.Parallel()
	z := newZone(t, "a.example.com. 60 IN A "+goodV4)
	asked, held := make(chan struct{}, 100), make(chan struct{})
	z.before = func() { asked <- struct{}{}; <-held }
	release := sync.OnceFunc(func() { close(held) })
	defer release()
	b := newBenchBehind(t, z)
	p := newPassing(t)
	done := p.serve(t.Context(), t, b)
	const queries = 5
	p.ask(t, "a.example.com", 0, queries)
	<-asked
	for b.usages.usageOf(b.boxes.BoxByAddr(addr("127.0.0.1"))).inFlight.Load() < queries {
		time.Sleep(time.Millisecond)
	}
	retired := make(chan error, 1)
	go func() { b.Retire(); retired <- nil }()
	ended(t, "retiring", retired)
	release()
	if err := p.answers(0, queries, answered); err != nil {
		t.Error(err)
	}
	all := make(chan error, 1)
	go func() { b.WaitAnswered(); all <- nil }()
	ended(t, "answering", all)
	ended(t, "the server", done)
}

// newBenchBehind makes a server that asks a real upstream, with long timeouts for busy machines.
func newBenchBehind(t *testing.T, z *zone) *Server {
	t.Helper()
	box := newBox(t, "box1", policy.Spec{Mode: policy.ModeAllowAll})
	c := testConfig(t, box, &events{})
	c.Upstreams = []string{newRealUpstream(t, z, nil).addr}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.up.upstreams[0].timeout, s.cache.timeout = time.Minute, 2*time.Minute
	return s
}
