package observe

import (
	"hash/maphash"
	"sync"
	"time"

	"boxgate/audit"
	"boxgate/policy"
)

const (
	queueLength = 8192
	// repeatSlots is how many kinds of decisions are summed up before they enter the queue. It is a power of two.
	repeatSlots = 512
)

// queued is one or more equal decisions. Its event has the time of the latest one, the number and all bytes.
type queued struct {
	audit.Event
	first time.Time
}

// queue holds decisions until they are summed up. Adding never blocks for longer than copying an event takes, and a
// decision that repeats a recent one costs less. Safe for concurrent use.
type queue struct {
	mu     sync.Mutex
	list   []queued
	spare  []queued // the other of two buffers, nil while it is read
	boxes  map[policy.BoxID]int
	lost   map[policy.BoxID]uint64
	seed   maphash.Seed
	recent [repeatSlots]int32 // the place in list of a recent decision, from 1, by its hash
}

func newQueue() *queue {
	return &queue{spare: make([]queued, 0, 64), boxes: map[policy.BoxID]int{}, lost: map[policy.BoxID]uint64{}, seed: maphash.MakeSeed()}
}

// add adds a decision, or counts it as lost. A box may have as many places as are free, so that however many boxes fill the
// queue, they leave each other box as many places as each of them has.
func (q *queue) add(e *audit.Event) {
	hash := maphash.String(q.seed, e.Path) ^ 3*maphash.String(q.seed, e.Name) ^ uint64(e.Port)<<8 ^ uint64(e.Verdict)
	q.mu.Lock()
	defer q.mu.Unlock()
	slot := &q.recent[hash%repeatSlots]
	if *slot > 0 && q.list[*slot-1].repeats(e) {
		q.list[*slot-1].add(e)
		return
	}
	n := len(q.list)
	if q.boxes[e.Box] >= queueLength-n {
		q.lost[e.Box] += max(e.Count, 1)
		return
	}
	q.boxes[e.Box]++
	q.list = append(q.list, queued{*e, e.Time})
	q.list[n].Count = max(e.Count, 1)
	*slot = int32(n + 1)
}

// repeats reports whether e differs from the decision only in its time, number and bytes.
func (d *queued) repeats(e *audit.Event) bool {
	return d.Path == e.Path && d.Name == e.Name && d.Box == e.Box && d.Port == e.Port && d.Verdict == e.Verdict && d.Stage == e.Stage &&
		d.Protocol == e.Protocol && d.Addr == e.Addr && d.Claimed == e.Claimed && d.Method == e.Method && d.Action == e.Action &&
		d.Reason == e.Reason && d.Rule == e.Rule && d.Version == e.Version && d.Phase == e.Phase &&
		d.Seen.Opening == e.Seen.Opening && d.Seen.Known == e.Seen.Known && d.Seen.Source == e.Seen.Source &&
		d.Seen.Proxied == e.Seen.Proxied && sameParameters(d.Seen.Query, e.Seen.Query)
}

func (d *queued) add(e *audit.Event) {
	d.Count += max(e.Count, 1)
	d.BytesIn += e.BytesIn
	d.BytesOut += e.BytesOut
	if e.Time.After(d.Time) {
		d.Time = e.Time
	}
}

// take returns the decisions and the counts of lost ones, and empties the queue. Give the decisions back by [queue.give].
func (q *queue) take() ([]queued, map[policy.BoxID]uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	list, lost := q.list, q.lost
	q.list, q.spare = q.spare, nil
	clear(q.boxes)
	q.recent = [repeatSlots]int32{}
	if len(lost) > 0 {
		q.lost = map[policy.BoxID]uint64{}
	}
	return list, lost
}

// give returns the buffer of decisions that were read.
func (q *queue) give(list []queued) {
	clear(list) // the texts of events
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spare = list[:0]
}
