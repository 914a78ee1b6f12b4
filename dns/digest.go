package dns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	mdns "github.com/miekg/dns"
)

// maxPlain is the maximum number of records in a plain answer.
const maxPlain = 16

// plainAnswer is the usual form of an upstream answer for A and AAAA: the addresses of the name asked for and at most
// an OPT record. Only such an answer is parsed without the DNS library.
type plainAnswer struct {
	addrs [maxPlain]netip.Addr
	ttls  [maxPlain]uint32
	count int
}

// parsePlainAnswer parses an answer to a question of class IN that occupies m[headerSize:end]. It reports false for
// every other message, malformed or not.
func parsePlainAnswer(m []byte, end int, qtype uint16) (a plainAnswer, ok bool) {
	// NOERROR, one question, at least one answer, no authority, at most one additional record.
	records, extra := binary.BigEndian.Uint16(m[6:]), binary.BigEndian.Uint16(m[10:])
	if m[3]&0xf != mdns.RcodeSuccess || binary.BigEndian.Uint16(m[4:]) != 1 || records == 0 || records > maxPlain || binary.BigEndian.Uint16(m[8:]) != 0 || extra > 1 {
		return a, false
	}
	name, rest := m[headerSize:end-4], m[end:]
	for range records {
		if rest, ok = a.add(rest, name, qtype); !ok {
			return a, false
		}
	}
	if extra == 1 {
		rest, ok = skipOPT(rest)
	}
	return a, ok && len(rest) == 0
}

// add parses a record whose owner is the name in the question, compressed or not.
func (a *plainAnswer) add(m, name []byte, qtype uint16) (rest []byte, ok bool) {
	size := 4
	if qtype == mdns.TypeAAAA {
		size = 16
	}
	if rest, ok = bytes.CutPrefix(m, compressed); !ok {
		rest, ok = bytes.CutPrefix(m, name)
	}
	if !ok || len(rest) < fixedPart+size || binary.BigEndian.Uint16(rest) != qtype ||
		binary.BigEndian.Uint16(rest[2:]) != mdns.ClassINET || int(binary.BigEndian.Uint16(rest[8:])) != size {
		return nil, false
	}
	addr, _ := netip.AddrFromSlice(rest[fixedPart : fixedPart+size])
	a.addrs[a.count], a.ttls[a.count] = addr, binary.BigEndian.Uint32(rest[4:])
	a.count++
	return rest[fixedPart+size:], true
}

// compressed is a pointer to the name in the question.
var compressed = []byte{questionName >> 8, questionName & 0xff}

// skipOPT skips an OPT record of version 0 without options, which does not change the response code.
func skipOPT(m []byte) (rest []byte, ok bool) {
	if len(m) < optSize || m[0] != 0 || binary.BigEndian.Uint16(m[1:]) != mdns.TypeOPT || m[5] != 0 || m[6] != 0 || m[9] != 0 || m[10] != 0 {
		return nil, false
	}
	return m[optSize:], true
}

// answer returns the same as digest would, already packed.
func (a *plainAnswer) answer(k cacheKey, now time.Time) *answer {
	out := &answer{rcode: mdns.RcodeSuccess, records: make([]mdns.RR, a.count), stored: now}
	owner := k.name.String() + "."
	for i := range a.count {
		h := mdns.RR_Header{Name: owner, Rrtype: k.qtype, Class: mdns.ClassINET, Ttl: a.ttls[i], Rdlength: uint16(a.addrs[i].BitLen() / 8)}
		if k.qtype == mdns.TypeA {
			out.records[i] = &mdns.A{Hdr: h, A: net.IP(a.addrs[i].AsSlice())}
		} else {
			out.records[i] = &mdns.AAAA{Hdr: h, AAAA: net.IP(a.addrs[i].AsSlice())}
		}
	}
	out.life = out.lifetime()
	out.packed.Store(a.pack(k))
	return out
}

// pack is newPacked for the answer.
func (a *plainAnswer) pack(k cacheKey) *packed {
	name := k.name.String()
	p := &packed{ttls: make([]int, a.count), addrs: make([]netip.Addr, a.count)}
	m := make([]byte, 0, headerSize+len(name)+2+4+a.count*addressSize)
	m = append(m, 0, 0, flagResponse|flagRecursion, flagAvailable, 0, 1, 0, byte(a.count), 0, 0, 0, 0)
	m = appendName(m, name)
	m = binary.BigEndian.AppendUint16(m, k.qtype)
	m = binary.BigEndian.AppendUint16(m, mdns.ClassINET)
	for i := range a.count {
		p.ttls[i], p.addrs[i] = len(m)+6, a.addrs[i]
		m = appendAddress(m, a.addrs[i], uint32(remainingTTL(ttlOf(a.ttls[i]), 0)/time.Second))
	}
	p.message, p.size = m, len(m)
	return p
}

// appendName appends a host name in wire format.
func appendName(m []byte, name string) []byte {
	at := len(m)
	m = append(append(append(m, 0), name...), 0) // the first byte, and each dot, becomes the length of what follows
	root := len(m) - 1
	for i := at + 1; i < root; i++ {
		if m[i] == '.' {
			m[at] = byte(i - at - 1)
			at = i
		}
	}
	m[at] = byte(root - 1 - at)
	return m
}

// digestMessage is digest for a message in wire format whose header and question have been checked. The error is an
// rcodeError if the server failed, and errUseStream if the message is malformed. A panic becomes an error, because no
// caller recovers.
func digestMessage(message []byte, k cacheKey, now time.Time) (a *answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			a, err = nil, fmt.Errorf("panic over an answer: %v", p)
		}
	}()
	if isAddress(k.qtype) {
		if plain, ok := parsePlainAnswer(message, headerSize+len(k.name.String())+2+4, k.qtype); ok {
			return plain.answer(k, now), nil
		}
	}
	m := new(mdns.Msg)
	if err := m.Unpack(message); err != nil {
		return nil, fmt.Errorf("%w: %w", errUseStream, err)
	}
	if m.Rcode != mdns.RcodeSuccess && m.Rcode != mdns.RcodeNameError { // the OPT record extends the code
		return nil, rcodeError(m.Rcode)
	}
	return digest(m, k.name, k.qtype, now)
}
