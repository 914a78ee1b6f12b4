package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"boxgate/policy"
)

// TestAttackAnswersThatCannotBeSent checks that boxes whose source address cannot be answered lose only their own
// answers. The other answers of the batch are sent, each once.
func TestAttackAnswersThatCannotBeSent(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		pc, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		sock, err := newSocket(pc)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sock.close() }()
		box, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer box.Close()
		to := box.LocalAddr().(*net.UDPAddr).AddrPort()
		nowhere := netip.AddrPortFrom(to.Addr(), 0) // a source port that only a raw socket can have
		if err := unix.Sendto(sock.fd, []byte("x"), unix.MSG_DONTWAIT, sockaddr(nowhere)); err == nil {
			t.Fatalf("something was sent to %v", nowhere)
		}
		b := newBatch(sock)
		const answers = 3 * batchSize
		for i := range answers {
			at := to
			if i%3 == 0 || i%5 == 0 { // first, last, and adjacent
				at = nowhere
			}
			b.add(fmt.Append(b.replyBuffer(), i), peer{from: at})
		}
		b.flush()
		buf := make([]byte, udpSize)
		for i := range answers {
			if i%3 == 0 || i%5 == 0 {
				continue
			}
			_ = box.SetReadDeadline(time.Now().Add(time.Minute))
			if n, _, err := box.ReadFrom(buf); err != nil || string(buf[:n]) != fmt.Sprint(i) {
				t.Fatalf("%s: answer %d: %q, %v", address, i, buf[:n], err)
			}
		}
		_ = box.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, _, err := box.ReadFrom(buf); err == nil {
			t.Errorf("%s: %q was sent twice", address, buf[:n])
		}
	}
}

// anyBox is a registry that maps every address to the same box.
type anyBox struct{ box *policy.Box }

func (a anyBox) BoxByAddr(netip.Addr) *policy.Box { return a.box }

// Boxes at consecutive addresses use different sockets: if the queue of one is full because its socket is not read, no
// query of the others is lost.
func TestAttackFullQueueOfOneBox(t *testing.T) {
	t.Parallel()
	pcs, err := ListenUDP(t.Context(), net.ListenConfig{}, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	flooder := dialFrom(t, "127.0.0.10", pcs[0].LocalAddr())
	wire, _ := newQuery("a.example.com", mdns.TypeA).Pack()
	if _, err := flooder.Write(wire); err != nil {
		t.Fatal(err)
	}
	flooded := receiver(t, pcs)
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4), Limits{QueriesPerSecond: 1e6, Burst: 1e6})
	b.boxes = anyBox{b.box}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, len(pcs))
	for i, pc := range pcs {
		if i == flooded {
			defer pc.Close()
			done <- nil
			continue
		}
		go func() { done <- b.ServeUDP(ctx, pc) }()
	}
	defer func() {
		cancel()
		for range pcs {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}()
	for range 20_000 {
		_, _ = flooder.Write(wire)
	}
	for i := range socketsPerAddress - 1 {
		box := dialFrom(t, netip.AddrFrom4([4]byte{127, 0, 0, byte(11 + i)}).String(), pcs[0].LocalAddr())
		for range 20 {
			co := &mdns.Conn{Conn: box}
			_ = box.SetDeadline(time.Now().Add(time.Minute))
			if err := co.WriteMsg(newQuery("a.example.com", mdns.TypeA)); err != nil {
				t.Fatal(err)
			}
			m, err := co.ReadMsg()
			if err != nil {
				t.Fatalf("a query of the box at %v was lost: %v", box.LocalAddr(), err)
			}
			wantAddresses(t, m, goodV4)
		}
	}
}

// An address on which another socket listens is refused, even if that one would share it.
func TestListenUDPWantsTheAddressForItself(t *testing.T) {
	t.Parallel()
	pcs, err := ListenUDP(t.Context(), net.ListenConfig{}, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pc := range pcs {
		defer pc.Close()
	}
	again, err := ListenUDP(t.Context(), net.ListenConfig{}, pcs[0].LocalAddr().(*net.UDPAddr).AddrPort())
	if err == nil {
		t.Errorf("%d more sockets were opened", len(again))
	}
}

func dialFrom(t *testing.T, from string, to net.Addr) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
	conn, err := d.DialContext(t.Context(), "udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// receiver reads the datagram that one of the sockets has received, and returns the index of the socket.
func receiver(t *testing.T, pcs []net.PacketConn) int {
	t.Helper()
	got := make(chan int, len(pcs))
	for i, pc := range pcs {
		go func() {
			if _, _, err := pc.ReadFrom(make([]byte, maxQuery)); err == nil {
				got <- i
				return
			}
			got <- -1
		}()
	}
	which := <-got
	for _, pc := range pcs {
		_ = pc.SetReadDeadline(time.Unix(1, 0))
	}
	for range len(pcs) - 1 {
		if <-got >= 0 {
			t.Error("one datagram arrived twice")
		}
	}
	for _, pc := range pcs {
		_ = pc.SetReadDeadline(time.Time{})
	}
	return which
}
