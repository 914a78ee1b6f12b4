package report

import (
	"testing"

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
