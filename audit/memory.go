package audit

import (
	"hash/maphash"
	"math"
	"math/bits"
	"time"
)

// destinationMemory remembers destinations for at least flowMemory, at most twice its limit of them. Beyond that, the
// older half is dropped. All operations take constant time.
type destinationMemory struct {
	limit    int
	new, old map[flowKey]struct{}
	networks map[flowKey]int // number of destinations in new, by network
	since    time.Time       // when new was started
}

// has reports whether the destination is remembered, and if so renews it.
func (m *destinationMemory) has(k flowKey, now time.Time) bool {
	m.expire(now)
	if _, ok := m.new[k]; ok {
		return true
	}
	_, ok := m.old[k]
	if ok {
		m.add(k, now)
	}
	return ok
}

func (m *destinationMemory) add(k flowKey, now time.Time) {
	if m.new == nil || len(m.new) >= m.limit {
		m.rotate(now)
	}
	m.new[k] = struct{}{}
	if n := k.network(); n != k {
		m.networks[n]++
	}
}

func (m *destinationMemory) rotate(now time.Time) {
	m.old, m.new, m.since = m.new, map[flowKey]struct{}{}, now
	m.networks = map[flowKey]int{}
}

// expire drops destinations that are too old.
func (m *destinationMemory) expire(now time.Time) {
	if age := now.Sub(m.since); age > 2*flowMemory {
		m.old, m.new, m.networks = nil, nil, nil
	} else if age > flowMemory && m.new != nil {
		m.rotate(now)
	}
}

// sketch estimates the number of distinct destinations, to a few percent up to about 100,000 (linear counting: from the
// number of bits of a bitmap that are still zero).
type sketch struct {
	bits []uint64
}

const sketchWords = 256

var sketchSeed = maphash.MakeSeed()

func (s *sketch) add(k flowKey) {
	if s.bits == nil {
		s.bits = make([]uint64, sketchWords)
	}
	h := maphash.Comparable(sketchSeed, k)
	s.bits[h>>6%sketchWords] |= 1 << (h & 63)
}

func (s *sketch) count() uint64 {
	if s.bits == nil {
		return 0
	}
	zero := 0
	for _, w := range s.bits {
		zero += 64 - bits.OnesCount64(w)
	}
	const size = 64 * sketchWords
	return uint64(math.Round(size * math.Log(size/float64(max(zero, 1)))))
}
