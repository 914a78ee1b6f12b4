package audit

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// sameKind reports whether two events of a box have the same kind. [hashOf] covers the same fields.
func sameKind(a, b *Event) bool {
	return a.Name == b.Name && a.Path == b.Path && a.Addr == b.Addr && a.Port == b.Port && a.Conn == b.Conn &&
		a.Method == b.Method && a.Verdict == b.Verdict && a.Stage == b.Stage && a.Reason == b.Reason &&
		a.Protocol == b.Protocol && a.Action == b.Action && a.Rule == b.Rule && a.Peer == b.Peer && a.Status == b.Status &&
		a.Credential == b.Credential && a.SelfTest == b.SelfTest
}

// kindSeed makes the hashes unpredictable for a box, which chooses some of the texts.
var kindSeed = maphash.MakeSeed()

// hashOf returns the hash of an event's kind. Of texts with few possible values it covers only the length.
func hashOf(e *Event) uint64 {
	var n [44]byte
	addr, peer := e.Addr.As16(), e.Peer.As16()
	copy(n[:], addr[:])
	copy(n[16:], peer[:])
	binary.LittleEndian.PutUint16(n[32:], e.Port)
	binary.LittleEndian.PutUint16(n[34:], uint16(e.Status))
	n[36] = byte(e.Verdict)
	if e.SelfTest {
		n[37] = 1
	}
	n[38], n[39], n[40] = byte(len(e.Stage)), byte(len(e.Reason)), byte(len(e.Protocol))
	n[41], n[42] = byte(len(e.Action)), byte(len(e.Credential))
	h := maphash.Bytes(kindSeed, n[:])
	h = mix(h, e.Name)
	h = mix(h, e.Path)
	h = mix(h, e.Conn)
	h = mix(h, e.Method)
	return mix(h, e.Rule)
}

// mix adds a text to a hash. The multiplication makes the result depend on the order of the texts.
func mix(h uint64, s string) uint64 {
	h = bits.RotateLeft64(h, 29) * 0x9e3779b97f4a7c15
	if s == "" {
		return h
	}
	return h ^ maphash.String(kindSeed, s)
}

// kindEvents are the events of one kind in a ring.
type kindEvents struct {
	hash           uint64
	n              int
	oldest, newest *remembered
	next           *kindEvents // in the same bucket, or in the free list
}

// kinds maps an event to the events of its kind. The zero value is empty.
type kinds struct {
	buckets []*kindEvents // their number is a power of two
	n       int
	free    *kindEvents
}

func (k *kinds) bucket(hash uint64) **kindEvents { return &k.buckets[hash&uint64(len(k.buckets)-1)] }

// find returns the events of the same kind as e, or nil.
func (k *kinds) find(hash uint64, e *Event) *kindEvents {
	if k.n == 0 {
		return nil
	}
	for l := *k.bucket(hash); l != nil; l = l.next {
		if l.hash == hash && sameKind(&l.newest.Event, e) {
			return l
		}
	}
	return nil
}

// add adds a kind that find did not return.
func (k *kinds) add(hash uint64) *kindEvents {
	if k.n >= len(k.buckets) {
		k.grow()
	}
	l := k.free
	if l == nil {
		l = &kindEvents{}
	} else {
		k.free = l.next
	}
	at := k.bucket(hash)
	*l = kindEvents{hash: hash, next: *at}
	*at = l
	k.n++
	return l
}

func (k *kinds) grow() {
	old := k.buckets
	k.buckets = make([]*kindEvents, max(2*len(old), 16))
	for _, l := range old {
		for l != nil {
			next, at := l.next, k.bucket(l.hash)
			l.next, *at = *at, l
			l = next
		}
	}
}

// drop removes a kind whose last event was evicted.
func (k *kinds) drop(l *kindEvents) {
	at := k.bucket(l.hash)
	for *at != l {
		at = &(*at).next
	}
	*at = l.next
	*l = kindEvents{next: k.free}
	k.free = l
	k.n--
}
