package audit

import (
	"encoding/binary"
	"hash/maphash"
)

// alike reports whether two events of a box are of one kind. [hashOf] covers the same fields.
func alike(a, b *Event) bool {
	return a.Name == b.Name && a.Path == b.Path && a.Addr == b.Addr && a.Port == b.Port && a.Conn == b.Conn &&
		a.Method == b.Method && a.Verdict == b.Verdict && a.Stage == b.Stage && a.Reason == b.Reason &&
		a.Protocol == b.Protocol && a.Action == b.Action && a.Rule == b.Rule && a.Peer == b.Peer && a.Status == b.Status &&
		a.Credential == b.Credential && a.SelfTest == b.SelfTest
}

// kindSeed makes the hashes unpredictable for a box, which chooses some of the texts.
var kindSeed = maphash.MakeSeed()

// hashOf returns the hash of the kind of an event. Texts of events have no zero bytes.
func hashOf(e *Event) uint64 {
	var h maphash.Hash
	h.SetSeed(kindSeed)
	text := func(s string) {
		_, _ = h.WriteString(s)
		_ = h.WriteByte(0)
	}
	text(e.Name)
	text(e.Path)
	text(e.Conn)
	text(e.Method)
	text(e.Rule)
	text(string(e.Stage))
	text(string(e.Reason))
	text(string(e.Protocol))
	text(string(e.Action))
	text(string(e.Credential))
	var n [40]byte
	addr, peer := e.Addr.As16(), e.Peer.As16()
	copy(n[:], addr[:])
	copy(n[16:], peer[:])
	binary.LittleEndian.PutUint16(n[32:], e.Port)
	binary.LittleEndian.PutUint16(n[34:], uint16(e.Status))
	n[36] = byte(e.Verdict)
	if e.SelfTest {
		n[37] = 1
	}
	_, _ = h.Write(n[:])
	return h.Sum64()
}

// likes are the events of one kind in a ring.
type likes struct {
	hash           uint64
	n              int
	oldest, newest *remembered
	next           *likes // with the same bucket, or free
}

// kinds finds the likes of an event. The zero value is empty.
type kinds struct {
	buckets []*likes // a power of two of them
	n       int
	free    *likes
}

func (k *kinds) bucket(hash uint64) **likes { return &k.buckets[hash&uint64(len(k.buckets)-1)] }

// find returns the events that are like e, or nil.
func (k *kinds) find(hash uint64, e *Event) *likes {
	if k.n == 0 {
		return nil
	}
	for l := *k.bucket(hash); l != nil; l = l.next {
		if l.hash == hash && alike(&l.newest.Event, e) {
			return l
		}
	}
	return nil
}

// add adds a kind that was not found.
func (k *kinds) add(hash uint64) *likes {
	if k.n >= len(k.buckets) {
		k.grow()
	}
	l := k.free
	if l == nil {
		l = &likes{}
	} else {
		k.free = l.next
	}
	at := k.bucket(hash)
	*l = likes{hash: hash, next: *at}
	*at = l
	k.n++
	return l
}

func (k *kinds) grow() {
	old := k.buckets
	k.buckets = make([]*likes, max(2*len(old), 16))
	for _, l := range old {
		for l != nil {
			next, at := l.next, k.bucket(l.hash)
			l.next, *at = *at, l
			l = next
		}
	}
}

// drop removes a kind of which no event is left.
func (k *kinds) drop(l *likes) {
	at := k.bucket(l.hash)
	for *at != l {
		at = &(*at).next
	}
	*at = l.next
	*l = likes{next: k.free}
	k.free = l
	k.n--
}
