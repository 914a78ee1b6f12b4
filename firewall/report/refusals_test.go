package report

import (
	"net/netip"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
)

// TestRefusalsAreToldOnce: packets whose own reports are still on their way when the kernel's counters are read are only
// reported by those; packets without a report are counted in one event.
func TestRefusalsAreToldOnce(t *testing.T) {
	r := &Reports{counts: map[countKey]*count{}}
	box := &tracked{}
	key := countKey{"", name.ReasonSpoofed}
	report := func(packets uint64) { r.markDirty(key, box).reported += packets }
	look := func(counted uint64) (told uint64) {
		for _, e := range r.suppressedEvents(name.ReasonSpoofed, map[string]uint64{"": counted}) {
			told += e.Count
		}
		return told
	}
	report(2)
	told := look(20) // of which 11 are reported: nine of these reports are under way
	report(9)
	for range 3 {
		told += look(20)
	}
	if told != 9 {
		t.Errorf("20 packets, 11 of them reported: %d more were recorded", told)
	}
	if r.counts[key].dirty {
		t.Error("counters are read each second although all packets were recorded")
	}
	report(1)
	if told = look(30); told != 0 {
		t.Errorf("%d packets were recorded immediately, although their reports may be on their way", told)
	}
	for _, e := range r.suppressedEvents(name.ReasonSpoofed, nil) { // the table was replaced
		told += e.Count
	}
	if told != 9 {
		t.Errorf("before the table was replaced, 10 more packets came, one of them reported: %d were recorded", told)
	}
}

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
