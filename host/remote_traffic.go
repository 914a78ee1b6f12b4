package host

import (
	"context"
	"maps"
	"sync"
	"time"

	"boxgate/host/handover"
	"boxgate/policy"
)

// remoteTraffic is the traffic of remote boxes in this process and in the ones before it that still drain. Boxes of this host have counters
// in the kernel, which all processes share. Safe for concurrent use.
type remoteTraffic struct {
	own    func(policy.BoxID) (in, out uint64, ok bool)
	before *handover.Predecessor

	mu      sync.Mutex
	earlier map[policy.BoxID]handover.Bytes // of the processes before, since this one began to count
	base    map[policy.BoxID]handover.Bytes // when this process stopped counting for its successor
}

// trafficInterval is the interval at which the process before is asked. The traffic of its last interval is lost.
const trafficInterval = time.Second

// Transferred returns how many bytes of payload were sent to a box and received from it, as [boxgate/remote.Server.Transferred] does.
func (t *remoteTraffic) Transferred(id policy.BoxID) (in, out uint64, ok bool) {
	in, out, ok = t.own(id)
	t.mu.Lock()
	defer t.mu.Unlock()
	e, drained := t.earlier[id]
	return in + e.In, out + e.Out, ok || drained
}

// follow asks the process before until it has ended, or ctx has.
func (t *remoteTraffic) follow(ctx context.Context) {
	tick := time.NewTicker(trafficInterval)
	defer tick.Stop()
	for t.before.Drains() {
		if seen, ok := t.before.Traffic(); ok {
			t.mu.Lock()
			t.earlier = seen
			t.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// stopCounting notes the traffic that this process has counted, for a successor that counts what follows. Further calls, after a successor
// has failed, have no effect: this process does not count again.
func (t *remoteTraffic) stopCounting(boxes []policy.BoxID) {
	base := t.sums(boxes)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.base == nil {
		t.base = base
	}
}

// drained returns the traffic of boxes that this process has not counted.
func (t *remoteTraffic) drained(boxes []policy.BoxID) map[policy.BoxID]handover.Bytes {
	if seen, ok := t.before.Traffic(); ok {
		t.mu.Lock()
		t.earlier = seen
		t.mu.Unlock()
	}
	now := t.sums(boxes)
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(now, func(id policy.BoxID, n handover.Bytes) bool { return n == t.base[id] })
	for id, n := range now {
		now[id] = handover.Bytes{In: since(t.base[id].In, n.In), Out: since(t.base[id].Out, n.Out)}
	}
	return now
}

// since returns the growth of a counter, which began anew if it has become less.
func since(base, now uint64) uint64 {
	if now < base {
		return now
	}
	return now - base
}

func (t *remoteTraffic) sums(boxes []policy.BoxID) map[policy.BoxID]handover.Bytes {
	sums := map[policy.BoxID]handover.Bytes{}
	for _, id := range boxes {
		if in, out, ok := t.Transferred(id); ok {
			sums[id] = handover.Bytes{In: in, Out: out}
		}
	}
	return sums
}
