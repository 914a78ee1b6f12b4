package host

import (
	"maps"
	"testing"

	"boxgate/host/handover"
	"boxgate/policy"
)

// TestTrafficOfEarlierProcesses counts a box in this process and in one before it, and then leaves the counting to a successor, which gets
// what follows in both of them. Another attempt to hand over loses nothing.
func TestTrafficOfEarlierProcesses(t *testing.T) {
	t.Parallel()
	own := map[policy.BoxID]handover.Bytes{"a": {In: 10, Out: 20}}
	r := &remoteTraffic{own: func(id policy.BoxID) (in, out uint64, ok bool) {
		n, ok := own[id]
		return n.In, n.Out, ok
	}}
	r.earlier = map[policy.BoxID]handover.Bytes{"a": {In: 1, Out: 2}, "b": {In: 3}}
	boxes := []policy.BoxID{"a", "b", "c"}
	for id, want := range map[policy.BoxID][2]uint64{"a": {11, 22}, "b": {3, 0}, "c": {}} {
		if in, out, ok := r.Transferred(id); in != want[0] || out != want[1] || ok != (id != "c") {
			t.Errorf("%s: %d, %d, %v", id, in, out, ok)
		}
	}
	r.stopCounting(boxes)
	if got := r.drained(boxes); len(got) != 0 {
		t.Errorf("before any traffic: %v", got)
	}
	own["a"], own["c"] = handover.Bytes{In: 15, Out: 20}, handover.Bytes{Out: 7}
	r.stopCounting(boxes)
	r.earlier["b"] = handover.Bytes{In: 4}
	want := map[policy.BoxID]handover.Bytes{"a": {In: 5}, "b": {In: 1}, "c": {Out: 7}}
	if got := r.drained(boxes); !maps.Equal(got, want) {
		t.Errorf("left to the successor: %v, want %v", got, want)
	}
	own["a"] = handover.Bytes{In: 2, Out: 21} // it was deleted, and connected anew
	r.earlier = nil
	if got := r.drained([]policy.BoxID{"a"})["a"]; got != (handover.Bytes{In: 2, Out: 21}) {
		t.Errorf("after the counters began anew: %+v", got)
	}
}
