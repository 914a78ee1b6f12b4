package outbound

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// server is a socket that a test answers from.
type server struct {
	*net.UDPConn
	t testing.TB
}

func newServer(t testing.TB, address string) server {
	t.Helper()
	pc, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	return server{pc.(*net.UDPConn), t}
}

func (s server) at() netip.AddrPort { return s.LocalAddr().(*net.UDPAddr).AddrPort() }

// next reads a question.
func (s server) next() (*mdns.Msg, netip.AddrPort) {
	s.t.Helper()
	buf := make([]byte, 4096)
	_ = s.SetReadDeadline(time.Now().Add(time.Minute))
	n, from, err := s.ReadFromUDPAddrPort(buf)
	if err != nil {
		s.t.Fatal(err)
	}
	m := new(mdns.Msg)
	if err := m.Unpack(buf[:n]); err != nil {
		s.t.Fatalf("the question %x: %v", buf[:n], err)
	}
	return m, from
}

func (s server) send(m *mdns.Msg, to netip.AddrPort) {
	s.t.Helper()
	wire, err := m.Pack()
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.WriteToUDPAddrPort(wire, to); err != nil {
		s.t.Fatal(err)
	}
}

func newSockets(t testing.TB, most int) *Sockets[string] {
	t.Helper()
	return newSocketsWithin(t, most, NewBudget(most))
}

func newSocketsWithin(t testing.TB, most int, budget *Budget) *Sockets[string] {
	t.Helper()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	s, err := New[string](most, budget, ends[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		_ = unix.Close(ends[0])
		_ = unix.Close(ends[1])
	})
	return s
}

func ask(t testing.TB, s *Sockets[string], to server, name string) *Question[string] {
	t.Helper()
	q, err := s.Ask(to.at(), name, mdns.TypeA, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	q.For = name
	return q
}

// wait waits for the end of a question, and returns its purpose and the answer, or nil.
func wait(t testing.TB, s *Sockets[string]) (about string, answer []byte) {
	t.Helper()
	about, answer, _ = waitForEnd(t, s)
	return about, answer
}

// waitForEnd is wait with the reason for a missing answer.
func waitForEnd(t testing.TB, s *Sockets[string]) (about string, answer []byte, reason error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); about == ""; {
		if time.Now().After(deadline) {
			t.Fatal("no question has ended")
		}
		if _, err := s.Wait(time.Second, func(q *Question[string], m []byte, err error) {
			about, answer, reason = q.For, slices.Clone(m), err
			s.End(q)
		}); err != nil {
			t.Fatal(err)
		}
	}
	return about, answer, reason
}

func reply(q *mdns.Msg, a string) *mdns.Msg {
	m := new(mdns.Msg).SetReply(q)
	rr, err := mdns.NewRR(q.Question[0].Name + " 60 IN A " + a)
	if err != nil {
		panic(err)
	}
	m.Answer = []mdns.RR{rr}
	return m
}

// TestQuestionsCannotBePredicted checks that reused sockets get other ports, IDs and spellings.
func TestQuestionsCannotBePredicted(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		up := newServer(t, address)
		s := newSockets(t, 1)
		ids, ports, spellings := map[uint16]bool{}, map[uint16]bool{}, map[string]bool{}
		const rounds = 40
		name := "abcdefghijklmnopqrstuvwxyz.example.com"
		for range rounds {
			ask(t, s, up, name)
			m, from := up.next()
			opt := m.IsEdns0()
			if len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, name+".") || m.Question[0].Qtype != mdns.TypeA ||
				!m.RecursionDesired || opt == nil || opt.Do() || opt.UDPSize() != UDPSize || len(opt.Option) > 0 {
				t.Fatalf("the question is\n%v", m)
			}
			ids[m.Id], ports[from.Port()], spellings[m.Question[0].Name] = true, true, true
			up.send(reply(m, "192.0.2.1"), from)
			if about, answer := wait(t, s); about != name || answer == nil {
				t.Fatalf("%s: %x", about, answer)
			}
		}
		if len(ids) < rounds-2 || len(ports) < rounds-8 || len(spellings) < rounds-2 {
			t.Errorf("of %d questions %d IDs, %d ports and %d spellings differ", rounds, len(ids), len(ports), len(spellings))
		}
	}
}

// TestAttackForgedAnswers checks that messages which do not match the question, or arrive at another port, are ignored.
func TestAttackForgedAnswers(t *testing.T) {
	t.Parallel()
	up, other := newServer(t, "127.0.0.1:0"), newServer(t, "127.0.0.1:0")
	s := newSockets(t, 1)
	ask(t, s, up, "a.example.com")
	m, from := up.next()
	forged := reply(m, "6.6.6.6")
	other.send(forged, from) // from another address
	forged.Id++
	up.send(forged, from)
	query := m.Copy()
	up.send(query, from)
	_, _ = up.WriteToUDPAddrPort([]byte("junk"), from)
	up.send(reply(m, "192.0.2.1"), from)
	_, answer := wait(t, s)
	got := new(mdns.Msg)
	if err := got.Unpack(answer); err != nil || got.Answer[0].(*mdns.A).A.String() != "192.0.2.1" {
		t.Errorf("got %v, %v", got, err)
	}
	for what, change := range map[string]func(*mdns.Msg){
		"folded":       func(m *mdns.Msg) { m.Question[0].Name = strings.ToLower(m.Question[0].Name) + "x." },
		"another type": func(m *mdns.Msg) { m.Question[0].Qtype = mdns.TypeAAAA },
		"two":          func(m *mdns.Msg) { m.Question = append(m.Question, m.Question[0]) },
		"none":         func(m *mdns.Msg) { m.Question = nil },
		"truncated":    func(m *mdns.Msg) { m.Truncated = true },
		"a failure to answer another question": func(m *mdns.Msg) {
			m.Rcode, m.Question[0].Name = mdns.RcodeServerFailure, "b.example.com."
		},
		"opcode": func(m *mdns.Msg) { m.Opcode = mdns.OpcodeNotify },
	} {
		ask(t, s, up, "a.example.com")
		m, from := up.next()
		forged := reply(m, "6.6.6.6")
		change(forged)
		up.send(forged, from)
		if _, answer, err := waitForEnd(t, s); answer != nil || !errors.Is(err, ErrSuspect) {
			t.Errorf("%s: believed %x, %v", what, answer, err)
		}
	}
}

// TestLateAnswersAreDropped checks that messages after the end are not taken for answers to the next question, and do
// not cause a busy loop.
func TestLateAnswersAreDropped(t *testing.T) {
	t.Parallel()
	up := newServer(t, "127.0.0.1:0")
	s := newSockets(t, 1)
	q := ask(t, s, up, "a.example.com")
	late, from := up.next()
	up.send(reply(late, "6.6.6.6"), from)
	up.send(reply(late, "6.6.6.6"), from)
	s.End(q) // with both messages in its queue
	if s.Open() != 0 {
		t.Errorf("%d are open", s.Open())
	}
	ask(t, s, up, "b.example.com")
	m, from := up.next()
	up.send(reply(m, "192.0.2.1"), from)
	if about, answer := wait(t, s); about != "b.example.com" || answer == nil || answer[0] != byte(m.Id>>8) {
		t.Errorf("%s: %x", about, answer)
	}
	if _, err := s.Wait(0, func(*Question[string], []byte, error) { t.Error("a question without an end") }); err != nil {
		t.Error(err)
	}
}

// TestFailuresAreAnswers checks that a failure without the question is accepted.
func TestFailuresAreAnswers(t *testing.T) {
	t.Parallel()
	up := newServer(t, "127.0.0.1:0")
	s := newSockets(t, 1)
	for _, withQuestion := range []bool{true, false} {
		ask(t, s, up, "a.example.com")
		m, from := up.next()
		failure := new(mdns.Msg).SetRcode(m, mdns.RcodeRefused)
		if !withQuestion {
			failure.Question = nil
		}
		up.send(failure, from)
		if _, answer, err := waitForEnd(t, s); answer == nil || err != nil || answer[3]&maskRcode != mdns.RcodeRefused {
			t.Errorf("got %x, %v", answer, err)
		}
	}
}

// TestAttackManyLateAnswers sends more messages than are drained from a reused socket, all of which match the next
// question.
func TestAttackManyLateAnswers(t *testing.T) {
	t.Parallel()
	up := newServer(t, "127.0.0.1:0")
	s := newSockets(t, 1)
	q := ask(t, s, up, "a.example.com")
	_, from := up.next()
	guessed := new(mdns.Msg).SetQuestion("b.example.com.", mdns.TypeA)
	guessed.Id = 0
	for range 3 * maxLate {
		up.send(reply(guessed, "6.6.6.6"), from)
	}
	s.End(q)
	clear(s.random[:]) // make the attacker's guess right
	s.randomUsed = 0
	ask(t, s, up, "b.example.com")
	m, from := up.next()
	if m.Id != guessed.Id || m.Question[0] != guessed.Question[0] {
		t.Fatalf("asked\n%v", m)
	}
	up.send(reply(m, "192.0.2.1"), from)
	_, answer := wait(t, s)
	got := new(mdns.Msg)
	if err := got.Unpack(answer); err != nil || got.Answer[0].(*mdns.A).A.String() != "192.0.2.1" {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestSocketsShareABudget checks that sockets are also returned to the budget.
func TestSocketsShareABudget(t *testing.T) {
	t.Parallel()
	up := newServer(t, "127.0.0.1:0")
	budget := NewBudget(3)
	one, other := newSocketsWithin(t, 2, budget), newSocketsWithin(t, 2, budget)
	ask(t, one, up, "a.example.com")
	ask(t, one, up, "b.example.com")
	ask(t, other, up, "c.example.com")
	if _, err := other.Ask(up.at(), "d.example.com", mdns.TypeA, time.Now()); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	one.epoll = -1 // so that it is not closed again
	ask(t, other, up, "d.example.com")
	if left := budget.left.Load(); left != 1 {
		t.Errorf("%d are left", left)
	}
}

// TestNobodyListens checks that a closed port ends the question immediately.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	up := newServer(t, "127.0.0.1:0")
	s := newSockets(t, 2)
	up.Close()
	ask(t, s, up, "a.example.com")
	if _, answer, err := waitForEnd(t, s); answer != nil || !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("got %x, %v", answer, err)
	}
}

func TestOpenQuestionsAreBounded(t *testing.T) {
	t.Parallel()
	up := newServer(t, "127.0.0.1:0")
	s := newSockets(t, 2)
	ask(t, s, up, "a.example.com")
	ask(t, s, up, "b.example.com")
	if _, err := s.Ask(up.at(), "c.example.com", mdns.TypeA, time.Now()); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	s.Each(func(q *Question[string]) { s.End(q) })
	ask(t, s, up, "c.example.com")
}

// FuzzJudge checks that every accepted message is, according to the DNS library too, a complete answer to the question,
// letter for letter, or a failure.
func FuzzJudge(f *testing.F) {
	q := &Question[string]{}
	q.write("a.example.com", mdns.TypeA, make([]byte, 15))
	asked := new(mdns.Msg)
	if err := asked.Unpack(q.wire[:q.size]); err != nil {
		f.Fatal(err)
	}
	for _, m := range []*mdns.Msg{asked, reply(asked, "192.0.2.1"), new(mdns.Msg).SetRcode(asked, mdns.RcodeNameError), new(mdns.Msg).SetRcode(asked, mdns.RcodeRefused)} {
		wire, _ := m.Pack()
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		answer, err := q.checkAnswer(wire)
		if (answer == nil) == (err == nil) {
			t.Fatalf("%x: %x, %v", wire, answer, err)
		}
		m := new(mdns.Msg)
		if err != nil || m.Unpack(wire) != nil {
			return // unpacking it fails later
		}
		silent := len(m.Question) == 0 && m.Rcode != mdns.RcodeSuccess && m.Rcode != mdns.RcodeNameError
		if m.Id != asked.Id || !m.Response || m.Truncated || m.Opcode != mdns.OpcodeQuery ||
			!silent && (len(m.Question) != 1 || m.Question[0] != asked.Question[0]) {
			t.Errorf("%x was believed:\n%v", wire, m)
		}
	})
}
