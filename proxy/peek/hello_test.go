package peek

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"slices"
	"testing"

	"boxgate/proxy/peek/peektest"
)

// commonHellos are ClientHellos of current clients.
func commonHellos(t testing.TB) map[string][]byte {
	t.Helper()
	return map[string][]byte{
		"Go":      peektest.Named(t, "api.example.com"),
		"TLS 1.2": peektest.Hello(t, &tls.Config{ServerName: "Api.Example.com", InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}),
		"no name": peektest.Hello(t, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}),
		"all":     everyExtension("api.example.com"),
	}
}

// everyExtension returns a ClientHello with every extension that readHello reads, in the form of browsers and OpenSSL.
func everyExtension(name string) []byte {
	vector := func(size int, parts ...[]byte) []byte {
		body := slices.Concat(parts...)
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)))[4-size:], body...)
	}
	var extensions []byte
	add := func(kind uint16, body ...[]byte) {
		extensions = append(binary.BigEndian.AppendUint16(extensions, kind), vector(2, body...)...)
	}
	add(0x1a1a)
	add(extServerName, vector(2, []byte{0}, vector(2, []byte(name))))
	add(extStatusRequest, []byte{1, 0, 0, 0, 0})
	add(extSupportedGroups, vector(2, []byte{0x8a, 0x8a, 0, 29, 0, 23}))
	add(extPointFormats, vector(1, []byte{0}))
	add(extSignatureAlgorithms, vector(2, []byte{4, 3, 8, 4}))
	add(extSignaturesCert, vector(2, []byte{4, 3}))
	add(extALPN, vector(2, vector(1, []byte("h2")), vector(1, []byte("http/1.1"))))
	add(extSCT)
	add(extEncryptThenMAC)
	add(extMasterSecret)
	add(extCompressCertificate, []byte{2, 0, 2})
	add(extRecordSizeLimit, []byte{0x40, 1})
	add(extDelegated, vector(2, []byte{4, 3}))
	add(extSessionTicket, []byte("ticket"))
	add(extEarlyData)
	add(extSupportedVersions, vector(1, []byte{0x2a, 0x2a, 3, 4, 3, 3}))
	add(extPSKModes, vector(1, []byte{1}))
	add(extPostHandshakeAuth)
	add(extKeyShare, vector(2, []byte{0x8a, 0x8a}, vector(2, []byte{0}), []byte{0, 29}, vector(2, make([]byte, 32))))
	add(extRenegotiationInfo, vector(1))
	add(extECH, []byte{0, 0, 1, 0, 1, 7}, vector(2, make([]byte, 32)), vector(2, make([]byte, 16)))
	add(extPadding, make([]byte, 7))
	add(extPreSharedKey, vector(2, vector(2, []byte("identity")), make([]byte, 4)), vector(2, vector(1, make([]byte, 32))))
	hello := slices.Concat([]byte{3, 3}, make([]byte, helloRandom), vector(1, make([]byte, 32)), vector(2, []byte{0x13, 1, 0xc0, 0x2b}), vector(1, []byte{0}), vector(2, extensions))
	return slices.Concat([]byte{recordHandshake, legacyMajor, 1}, vector(2, []byte{clientHello}, vector(3, hello)))
}

// agrees reports whether readHello accepts data, and fails the test if crypto/tls does not agree.
func agrees(t testing.TB, data []byte) (accepted bool) {
	t.Helper()
	name, ok := readHello(data)
	if !ok {
		return false
	}
	if hello, err := parseHello(data); err != nil || hello.ServerName != string(name) || !slices.ContainsFunc(hello.SupportedVersions, isOffer) {
		t.Errorf("accepted with the name %q; crypto/tls: %+v, %v\n%x", name, hello, err, data)
	}
	return true
}

func TestCommonClientHellosNeedNoTLSConnection(t *testing.T) {
	for what, hello := range commonHellos(t) {
		for _, data := range [][]byte{hello, append(bytes.Clone(hello), "early"...)} {
			if !agrees(t, data) {
				t.Errorf("%s: left to crypto/tls", what)
			}
			if n := testing.AllocsPerRun(100, func() { _, _ = readHello(data) }); n > 0 {
				t.Errorf("%s: %v allocations", what, n)
			}
		}
	}
}

// TestAttackAlteredClientHello changes every byte of common hellos, and truncates them anywhere.
func TestAttackAlteredClientHello(t *testing.T) {
	for _, hello := range commonHellos(t) {
		for at := range hello {
			for _, b := range []byte{0, 1, 2, 3, 41, 43, '.', 0x80, 0xff, hello[at] - 1, hello[at] + 1} {
				altered := bytes.Clone(hello)
				altered[at] = b
				agrees(t, altered)
			}
			agrees(t, hello[:at])
		}
	}
}

// TestAttackTwoReadingsOfAClientHello: hellos that two parsers could read differently are left to crypto/tls.
func TestAttackTwoReadingsOfAClientHello(t *testing.T) {
	name := func(names ...string) []byte {
		var list []byte
		for _, n := range names {
			list = append(append(list, 0, 0, byte(len(n))), n...)
		}
		body := append([]byte{0, byte(len(list))}, list...)
		return append([]byte{0, extServerName, 0, byte(len(body))}, body...)
	}
	anonymous := peektest.Hello(t, &tls.Config{InsecureSkipVerify: true})
	for what, hello := range map[string][]byte{
		"two names":              peektest.WithExtension(t, anonymous, name("a.example.com", "b.example.com")),
		"server_name twice":      peektest.WithExtension(t, peektest.Named(t, "a.example.com"), name("b.example.com")),
		"no character of a name": peektest.WithExtension(t, anonymous, name("a.example.com\x00b")),
		"trailing dot":           peektest.WithExtension(t, anonymous, name("a.example.com.")),
		"unknown extension":      peektest.WithExtension(t, anonymous, []byte{0x12, 0x34, 0, 0}),
		"two records":            inRecords(peektest.Named(t, "a.example.com"), 100),
		"TLS 1.1":                peektest.Hello(t, &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}),
	} {
		if name, ok := readHello(hello); ok {
			t.Errorf("%s: accepted with the name %q", what, name)
		}
	}
}

// A server name that ends in the root's dot is read from the hello without that dot, whatever its form; the rest is checked
// as strictly.
func TestServerNameWithTheRootsDot(t *testing.T) {
	t.Parallel()
	const plain, rooted = "www.example.com", "www.example.com."
	dotted := func(protos []string) []byte {
		h := peektest.Hello(t, &tls.Config{ServerName: plain + "x", InsecureSkipVerify: true, NextProtos: protos})
		return bytes.Replace(h, []byte(plain+"x"), []byte(rooted), 1)
	}
	hello, long := dotted(nil), dotted(peektest.LongProtocols(20000))
	for what, data := range map[string][]byte{
		"one record":           hello,
		"data behind it":       append(bytes.Clone(hello), "early"...),
		"records of one byte":  inRecords(hello, 1),
		"several records":      inRecords(hello, 100),
		"more than a record":   long,
		"an unknown extension": peektest.WithExtension(t, hello, []byte{0x12, 0x34, 0, 0}),
	} {
		f := First{Data: data}
		if f.classify(); f.Kind != TLS || f.SNI != rooted || f.Name.String() != plain || !f.NamesRoot() {
			t.Errorf("%s: %v %q %v", what, f.Kind, f.SNI, f.Name)
		}
	}
	anonymous := peektest.Hello(t, &tls.Config{InsecureSkipVerify: true})
	for what, data := range map[string][]byte{
		"two dots":          bytes.Replace(hello, []byte(rooted), []byte("www.example.co.."), 1),
		"a dot alone":       peektest.WithExtension(t, anonymous, []byte{0, 0, 0, 6, 0, 4, 0, 0, 1, '.'}),
		"another name":      peektest.WithExtension(t, hello, []byte{0, 0, 0, 6, 0, 4, 0, 0, 1, 'a'}),
		"two in one":        peektest.WithExtension(t, anonymous, []byte{0, 0, 0, 11, 0, 9, 0, 0, 2, 'a', '.', 0, 0, 1, 'b'}),
		"nothing but ALPN":  peektest.WithExtension(t, anonymous, []byte{0, 0, 0, 0}),
		"a length too long": peektest.WithExtension(t, anonymous, []byte{0, 0, 0, 7, 0, 5, 0, 0, 9, 'a', '.'}),
	} {
		f := First{Data: data}
		if f.classify(); f.Kind != BadTLS || !f.Name.IsZero() {
			t.Errorf("%s: %v %q %v", what, f.Kind, f.SNI, f.Name)
		}
	}
	for n := range len(hello) { // truncated anywhere
		_, _ = withoutRoot(hello[:n])
	}
}

// FuzzWithoutRoot: crypto/tls finds the name in the result, or rejects it.
func FuzzWithoutRoot(f *testing.F) {
	for _, hello := range commonHellos(f) {
		f.Add(hello)
		f.Add(inRecords(hello, 50))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rootless, ok := withoutRoot(data)
		if again, twice := withoutRoot(rootless); ok && twice && len(again) == 0 {
			t.Errorf("%x", data)
		}
		if name, ok := parsedName(rootless); ok && (name == "" || !bytes.Contains(joinRecords(data), []byte(name+"."))) {
			t.Errorf("the name is %q", name)
		}
	})
}

// FuzzReadHello: crypto/tls confirms every result of readHello.
func FuzzReadHello(f *testing.F) {
	for _, hello := range commonHellos(f) {
		f.Add(hello)
	}
	f.Fuzz(func(t *testing.T, data []byte) { agrees(t, data) })
}

func BenchmarkClassifyHello(b *testing.B) {
	data := peektest.Named(b, "api.example.com")
	b.ReportAllocs()
	for b.Loop() {
		f := First{Data: data}
		if f.classify(); f.Kind != TLS {
			b.Fatal(f.Kind)
		}
	}
}
