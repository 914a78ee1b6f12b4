package dns

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
)

// An answer leaves from the address that was asked, whether it is denied, cached or looked up: a client accepts no other.
func TestAnswersLeaveFromTheAddressThatWasAsked(t *testing.T) {
	t.Parallel()
	b := newBench(t, domains("a.example.com"), newZone(t, "a.example.com. 60 IN A "+goodV4), Limits{})
	b.boxes = anyBox{b.box}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	for any, asked := range map[string][]string{"0.0.0.0:0": {"127.0.0.1", "127.0.0.77", "127.83.53.1"}, "[::]:0": {"::1"}} {
		pc, err := ListenUDPForAny(t.Context(), net.ListenConfig{}, netip.MustParseAddrPort(any))
		if err != nil {
			t.Fatal(err)
		}
		port := pc.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		serving.Go(func() {
			if err := b.ServeUDP(ctx, pc); err != nil {
				t.Error(err)
			}
		})
		for _, at := range asked {
			for _, host := range []string{"a.example.com", "a.example.com", "denied.example.net"} {
				conn, err := net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(at), port).String())
				if err != nil {
					t.Fatal(err)
				}
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				co := &mdns.Conn{Conn: conn}
				if err := co.WriteMsg(newQuery(host, mdns.TypeA)); err != nil {
					t.Fatal(err)
				}
				if _, err := co.ReadMsg(); err != nil {
					t.Fatalf("%s asked at %s: %v", host, at, err)
				}
				_ = conn.Close()
			}
		}
	}
}

// Control messages of another kind or size name no address.
func TestOnlyAddressesOfControlMessages(t *testing.T) {
	t.Parallel()
	for _, a := range []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")} {
		var c info
		n := uint64(c.put(a))
		if got := c.asked(0); got.IsValid() {
			t.Errorf("%v from an empty message", got)
		}
		if got := c.asked(20); got.IsValid() {
			t.Errorf("%v from part of a message", got)
		}
		c.header.Type++
		if got := c.asked(n); got.IsValid() {
			t.Errorf("%v from a message of another type", got)
		}
	}
}
