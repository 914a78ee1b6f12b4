package balancer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/netip"
	"strings"
	"testing"
)

// header builds a header with extensions.
func header(command, family byte, from, to netip.AddrPort, added ...byte) []byte {
	var rest []byte
	if from.IsValid() {
		rest = append(append(rest, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
		rest = binary.BigEndian.AppendUint16(rest, from.Port())
		rest = binary.BigEndian.AppendUint16(rest, to.Port())
	}
	rest = append(rest, added...)
	b := append([]byte(signature), command, family)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(rest))), rest...)
}

// summed adds a checksum, with some bits flipped.
func summed(b []byte, off uint32) []byte {
	size := binary.BigEndian.Uint16(b[14:]) + 7
	binary.BigEndian.PutUint16(b[14:], size)
	b = append(b, typeChecksum, 0, 4, 0, 0, 0, 0)
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	binary.BigEndian.PutUint32(b[len(b)-4:], sum^off)
	return b
}

var (
	v4, to4 = netip.MustParseAddrPort("192.0.2.7:4711"), netip.MustParseAddrPort("198.51.100.1:443")
	v6, to6 = netip.MustParseAddrPort("[2001:db8::7]:4711"), netip.MustParseAddrPort("[2001:db8::1]:443")
	mapped  = netip.MustParseAddrPort("[::ffff:192.0.2.7]:4711")
)

func TestHeader(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   []byte
		from netip.AddrPort
		err  error
	}{
		"IPv4":                {header(proxy, tcp4, v4, to4), v4, nil},
		"IPv6":                {header(proxy, tcp6, v6, to6), v6, nil},
		"IPv4 in IPv6":        {header(proxy, tcp6, mapped, to6), v4, nil},
		"more":                {header(proxy, tcp4, v4, to4, 0x02, 0, 3, 'a', 'b', 'c', 0x04, 0, 0), v4, nil},
		"checksum":            {summed(header(proxy, tcp6, v6, to6, 0x04, 0, 1, 0), 0), v6, nil},
		"of its own":          {header(local, 0, netip.AddrPort{}, netip.AddrPort{}), netip.AddrPort{}, nil},
		"own, with address":   {header(local, tcp4, v4, to4), netip.AddrPort{}, nil},
		"wrong checksum":      {summed(header(proxy, tcp4, v4, to4), 1), netip.AddrPort{}, errChecksum},
		"short checksum":      {header(proxy, tcp4, v4, to4, typeChecksum, 0, 2, 0, 0), netip.AddrPort{}, errChecksum},
		"cut in what follows": {header(proxy, tcp4, v4, to4, 0x04, 0, 9, 0), netip.AddrPort{}, errShort},
		"cut in its length":   {header(proxy, tcp4, v4, to4, 0x04, 0), netip.AddrPort{}, errShort},
		"no address":          {header(proxy, tcp4, netip.AddrPort{}, netip.AddrPort{}), netip.AddrPort{}, errShort},
		"IPv4 as IPv6":        {header(proxy, tcp6, v4, to4), netip.AddrPort{}, errShort},
		"cut":                 {header(proxy, tcp4, v4, to4)[:20], netip.AddrPort{}, errShort},
		"UDP":                 {header(proxy, 0x12, v4, to4), netip.AddrPort{}, errFamily},
		"unknown family":      {header(proxy, 0, netip.AddrPort{}, netip.AddrPort{}), netip.AddrPort{}, errFamily},
		"a Unix socket":       {header(proxy, 0x31, netip.AddrPort{}, netip.AddrPort{}, make([]byte, 216)...), netip.AddrPort{}, errFamily},
		"unknown command":     {header(0x22, tcp4, v4, to4), netip.AddrPort{}, errSignature},
		"version 3":           {header(0x31, tcp4, v4, to4), netip.AddrPort{}, errSignature},
		"0.0.0.0":             {header(proxy, tcp4, netip.MustParseAddrPort("0.0.0.0:1"), to4), netip.AddrPort{}, errAddress},
		"multicast":           {header(proxy, tcp6, netip.MustParseAddrPort("[ff02::1]:1"), to6), netip.AddrPort{}, errAddress},
		"huge":                {append([]byte(signature), proxy, tcp4, 0xff, 0xff), netip.AddrPort{}, errSize},
		"version 1":           {[]byte("PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n"), netip.AddrPort{}, errSignature},
		"TLS":                 {[]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcdefgh"), netip.AddrPort{}, errSignature},
		"nothing":             {nil, netip.AddrPort{}, errSignature},
	} {
		r := bytes.NewReader(append(c.in, "behind"...))
		if strings.HasPrefix(name, "cut") && errors.Is(c.err, errShort) && len(c.in) == 20 || name == "nothing" {
			r = bytes.NewReader(c.in)
		}
		got, err := Read(r)
		if got.From != c.from || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %v, %v", name, got.From, err)
		}
		if err != nil {
			continue
		}
		if rest, _ := io.ReadAll(r); string(rest) != "behind" {
			t.Errorf("%s: %q is left", name, rest)
		}
	}
}

// FuzzRead: Read never reads beyond the length in the header, nor returns an address that the header does not contain.
func FuzzRead(f *testing.F) {
	f.Add(header(proxy, tcp4, v4, to4))
	f.Add(summed(header(proxy, tcp6, v6, to6), 0))
	f.Add(header(local, 0, netip.AddrPort{}, netip.AddrPort{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := Read(r)
		if err != nil {
			if h != (Header{}) {
				t.Errorf("%v with %v", h, err)
			}
			return
		}
		size := fixedSize + int(binary.BigEndian.Uint16(b[14:]))
		if taken := len(b) - r.Len(); taken != size || string(b[:12]) != signature {
			t.Errorf("took %d of %d", taken, size)
		}
		if !h.From.IsValid() {
			if b[12] != local {
				t.Errorf("no address: %x", b)
			}
			return
		}
		a := h.From.Addr().As16()
		four := h.From.Addr().Is4() && bytes.Equal(b[16:20], a[12:])
		if b[12] != proxy || !four && !bytes.Equal(b[16:32], a[:]) {
			t.Errorf("%v of %x", h.From, b)
		}
	})
}
