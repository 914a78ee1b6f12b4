package dns

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
)

// FuzzDigest checks that answers parsed without the DNS library have the same content as with it, and are packed
// identically.
func FuzzDigest(f *testing.F) {
	for _, lines := range []string{"a.example.com. 60 IN A 192.0.2.1", "a.example.com. 0 IN A 192.0.2.1|a.example.com. 4294967295 IN A 192.0.2.2",
		"a.example.com. 60 IN AAAA 2001:db8::1", "a.example.com. 60 IN AAAA ::ffff:192.0.2.1", "a.example.com. 60 IN CNAME b.example.com.", ""} {
		m := new(mdns.Msg).SetQuestion("A.example.com.", mdns.TypeA)
		m.Response, m.Compress = true, true
		for line := range strings.SplitSeq(lines, "|") {
			if line != "" {
				rr := mustRR(line)
				rr.Header().Name = m.Question[0].Name
				m.Question[0].Qtype = rr.Header().Rrtype
				m.Answer = append(m.Answer, rr)
			}
		}
		wire, _ := m.Pack()
		f.Add(wire)
		m.SetEdns0(1232, true)
		m.Compress = false
		wire, _ = m.Pack()
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		now := time.Unix(1e9, 0)
		k, ok := keyOf(wire)
		if !ok {
			return
		}
		given := slices.Clone(wire)
		plain, ok := parsePlainAnswer(wire, headerSize+len(k.name.String())+2+4, k.qtype)
		if !ok {
			return
		}
		got := plain.answer(k, now)
		clear(wire) // the answer outlives the message
		m := new(mdns.Msg)
		if err := m.Unpack(given); err != nil || m.Rcode != mdns.RcodeSuccess {
			t.Fatalf("%x was read, but: %v, %v", given, m, err)
		}
		want, err := digest(m, k.name, k.qtype, now)
		if err != nil {
			t.Fatal(err)
		}
		p := newPacked(k, want)
		p.message[0], p.message[1] = 0, 0 // the ID, which is set for each query
		if !reflect.DeepEqual(got.packed.Load(), p) {
			t.Errorf("%x is packed as\n%+v, want\n%+v", given, got.packed.Load(), p)
		}
		got.packed.Store(nil)
		for i, rr := range want.records {
			rr.Header().Name = mdns.CanonicalName(rr.Header().Name)
			if !reflect.DeepEqual(addrOf(rr), addrOf(got.records[i])) || *rr.Header() != *got.records[i].Header() {
				t.Errorf("%x: record %d is %v, want %v", given, i, got.records[i], rr)
			}
		}
		if len(got.records) != len(want.records) {
			t.Errorf("%x: %d records, want %d", given, len(got.records), len(want.records))
		}
		got.records, want.records = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%x is\n%+v, want\n%+v", given, got, want)
		}
	})
}

// keyOf returns the question of a message that outbound has accepted.
func keyOf(wire []byte) (k cacheKey, ok bool) {
	var q plainQuery
	if len(wire) < headerSize {
		return k, false
	}
	var buf [maxName]byte
	end, ok := q.readName(wire, buf[:])
	if !ok || end+4 > len(wire) {
		return k, false
	}
	n, err := parseName(string(q.name))
	k = cacheKey{n, uint16(wire[end])<<8 | uint16(wire[end+1])}
	return k, err == nil && n.String() == string(q.name) && isAddress(k.qtype) && wire[end+2] == 0 && wire[end+3] == mdns.ClassINET
}

// TestPlainAnswersAreRead checks that plain answers are parsed without the DNS library. Otherwise they would be slower
// without any test noticing.
func TestPlainAnswersAreRead(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"a.example.com. 60 IN A 192.0.2.1", "a.example.com. 60 IN AAAA 2001:db8::1"} {
		rr := mustRR(line)
		m := new(mdns.Msg).SetQuestion(rr.Header().Name, rr.Header().Rrtype)
		m.Response, m.Compress, m.Answer = true, true, []mdns.RR{rr, rr}
		for _, m.Compress = range []bool{true, false} {
			wire, _ := m.Pack()
			k, ok := keyOf(wire)
			a, plain := parsePlainAnswer(wire, headerSize+len(k.name.String())+2+4, k.qtype)
			if !ok || !plain || a.count != 2 || a.addrs[1] != addrOf(rr) || a.ttls[1] != 60 {
				t.Errorf("%v: %+v", m, a)
			}
			m.SetEdns0(1232, false)
		}
	}
}
