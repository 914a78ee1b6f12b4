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
		t.Errorf("20 packets, of which 11 were reported: told of %d more", told)
	}
	if r.counts[key].dirty {
		t.Error("counters of which everything has been told are read each second")
	}
	report(1)
	if told = look(30); told != 0 {
		t.Errorf("told at once of %d packets, whose reports may be under way", told)
	}
	for _, e := range r.suppressedEvents(name.ReasonSpoofed, nil) { // the table was replaced
		told += e.Count
	}
	if told != 9 {
		t.Errorf("before the table was replaced, 10 more packets came, of which one was reported: told of %d", told)
	}
}
