package report

import (
	"net/netip"
	"testing"

	"boxgate/policy"
)

func TestParsePacket(t *testing.T) {
	four := []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 198, 51, 100, 7, 0x10, 0, 0x01, 0xbb}
	want := packet{policy.TCP, netip.MustParseAddr("198.51.100.7"), 443}
	if got := parsePacket(four); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	later := append([]byte(nil), four...)
	later[7] = 1 // a later fragment has no ports
	if got := parsePacket(later); got.port != 0 {
		t.Errorf("port of a later fragment: %+v", got)
	}
	six := make([]byte, 44)
	six[0], six[6], six[39], six[43] = 0x60, 17, 9, 53
	if got := parsePacket(six); got.protocol != policy.UDP || got.port != 53 || got.dest != netip.MustParseAddr("::9") {
		t.Errorf("got %+v", got)
	}
}

func FuzzParsePacket(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 198, 51, 100, 7, 0x10, 0, 0x01, 0xbb})
	f.Add(make([]byte, 64))
	f.Add([]byte{0x60})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := parsePacket(b)
		if p.port != 0 && p.protocol != policy.TCP && p.protocol != policy.UDP {
			t.Errorf("a port without TCP or UDP: %+v", p)
		}
	})
}
