package keyless

import (
	"net"
	"testing"
)

// TestStrangersShareByPeer: a peer that opens many connections closes its own; those of others, and those that have shown a
// key, stay.
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
	if left[quiet] || left[keyed] || !left[first] || s.n != 8 || len(s.from["loud"]) != 7 {
		t.Errorf("quiet left: %v, keyed left: %v, the first of many left: %v; %d are counted", left[quiet], left[keyed], left[first], s.n)
	}
	for range 4 {
		come("third")
	}
	if len(s.from["third"])+len(s.from["loud"]) != 7 || len(s.from["third"]) < 3 || len(s.from["loud"]) < 3 || left[quiet] {
		t.Errorf("then: %d and %d", len(s.from["third"]), len(s.from["loud"]))
	}
	for _, v := range append(append([]*conn{quiet}, s.from["loud"]...), s.from["third"]...) {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	if s.n != 0 || len(s.from) != 0 {
		t.Errorf("%d are counted after all have gone", s.n)
	}
}
