package authlimit

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/peernet"
	"boxgate/internal/socket"
)

// TestStrangersShareByPeer: a peer that opens many connections closes its own. Connections of other peers, and
// connections that have presented a key, stay.
func TestStrangersShareByPeer(t *testing.T) {
	t.Parallel()
	s := New(nil, 8)
	left := map[*conn]bool{}
	come := func(peer string) *conn {
		c, other := net.Pipe()
		t.Cleanup(func() { c.Close(); other.Close() })
		v := &conn{Conn: c, listener: s, peer: peer}
		if out := s.add(v); out != nil {
			left[out] = true
		}
		return v
	}
	quiet := come("quiet")
	keyed := come("loud")
	s.remove(keyed)
	first := come("loud")
	for range 100 {
		come("loud")
	}
	if left[quiet] || left[keyed] || !left[first] || s.n != 8 || len(s.byPeer["loud"]) != 7 {
		t.Errorf("quiet left: %v, keyed left: %v, the first of many left: %v; %d are counted", left[quiet], left[keyed], left[first], s.n)
	}
	for range 4 {
		come("third")
	}
	if len(s.byPeer["third"])+len(s.byPeer["loud"]) != 7 || len(s.byPeer["third"]) < 3 || len(s.byPeer["loud"]) < 3 || left[quiet] {
		t.Errorf("then: %d and %d", len(s.byPeer["third"]), len(s.byPeer["loud"]))
	}
	for _, v := range append(append([]*conn{quiet}, s.byPeer["loud"]...), s.byPeer["third"]...) {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	if s.n != 0 || len(s.byPeer) != 0 {
		t.Errorf("%d are counted after all have gone", s.n)
	}
}

// TestAttackStrangerWithManyNetworks: a stranger with a /56 or /48 connects from another /64 each time, as its provider lets it. It closes
// its own connections, and other clients keep theirs.
func TestAttackStrangerWithManyNetworks(t *testing.T) {
	t.Parallel()
	for name, attacker := range map[string]func(i int) string{
		"a /56": func(i int) string { return fmt.Sprintf("2001:db8:1:2%02x::1", i%256) },
		"a /48": func(i int) string { return fmt.Sprintf("2001:db8:1:%x::1", i*257%65536) },
		"a /64": func(i int) string { return fmt.Sprintf("2001:db8:1:2::%x", i+1) },
	} {
		s := New(nil, 32)
		left := map[*conn]bool{}
		come := func(address string) *conn {
			c, other := net.Pipe()
			t.Cleanup(func() { c.Close(); other.Close() })
			network := peernet.Network(netip.MustParseAddr(address))
			v := &conn{Conn: c, listener: s, peer: network.String(), networks: peernet.All(network)}
			if out := s.add(v); out != nil {
				left[out] = true
			}
			return v
		}
		var others []*conn
		for _, address := range []string{"192.0.2.1", "192.0.2.1", "198.51.100.7", "2001:db8:2:1::1", "2001:db8:2:2::1", "2001:db8:3::1"} {
			others = append(others, come(address))
		}
		for i := range 500 {
			come(attacker(i))
		}
		for i, c := range others {
			if left[c] {
				t.Errorf("a stranger with %s evicts connection %d of another", name, i)
			}
		}
		if s.n != 32 {
			t.Errorf("%d connections are counted", s.n)
		}
		for _, conns := range s.byPeer {
			for _, c := range slices.Clone(conns) {
				s.remove(c)
			}
		}
		if s.n != 0 || len(s.byPeer) != 0 || len(s.wider) != 0 {
			t.Errorf("left: %d connections, %d peers, %d networks", s.n, len(s.byPeer), len(s.wider))
		}
	}
}

// TestAttackStrangerBesideOthersOfItsProvider: a stranger with several /56 networks of a provider connects from another /64 each time. Another
// customer in the same /48 has two connections, more than each network of the stranger, and keeps them.
func TestAttackStrangerBesideOthersOfItsProvider(t *testing.T) {
	t.Parallel()
	s := New(nil, 32)
	left := map[*conn]bool{}
	come := func(address string) *conn {
		c, other := net.Pipe()
		t.Cleanup(func() { c.Close(); other.Close() })
		network := peernet.Network(netip.MustParseAddr(address))
		v := &conn{Conn: c, listener: s, peer: network.String(), networks: peernet.All(network)}
		if out := s.add(v); out != nil {
			left[out] = true
		}
		return v
	}
	neighbour := []*conn{come("2001:db8:1:ff00::1"), come("2001:db8:1:ff00::2")}
	for i := range 500 {
		come(fmt.Sprintf("2001:db8:1:%02x%02x::1", i%3, i%256))
	}
	for i, c := range neighbour {
		if left[c] {
			t.Errorf("connection %d of another customer is evicted", i)
		}
	}
}

// TestSocketOfAConnectionCanBeAsked: servers can ask the kernel whether a client is still connected, but cannot close the
// socket behind the listener's back.
func TestSocketOfAConnectionCanBeAsked(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	l := New(ln, 8)
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		t.Fatal("the connection has no SyscallConn")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if ctlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); ctlErr != nil || err != nil || info.State != unix.BPF_TCP_ESTABLISHED {
		t.Errorf("%v, %v, %+v", ctlErr, err, info)
	}
	socket.Reset(c)
	if n := l.Held(); n != 0 {
		t.Errorf("%d connections are held after a reset", n)
	}
}
