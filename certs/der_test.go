package certs

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/netip"
	"testing"
	"time"
)

// ofTheLibrary returns crypto/x509's certificate for the same request.
func ofTheLibrary(a *Authority, key *leafKey, r *request) (*x509.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber:          r.serial,
		Subject:               pkix.Name{CommonName: r.commonName},
		NotBefore:             r.from,
		NotAfter:              r.to,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              r.dns,
	}
	for _, addr := range r.addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(addr.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// For any names and times the signed part is the same as crypto/x509's, and the signature is valid.
func FuzzLeafIsThatOfTheLibrary(f *testing.F) {
	ca, err := NewCA("box one")
	if err != nil {
		f.Fatal(err)
	}
	key, err := newLeafKey()
	if err != nil {
		f.Fatal(err)
	}
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).Unix()
	f.Add("a.example.com", "", now, int64(86400))
	f.Add("*.preview.localhost", "preview.localhost", now, int64(30*86400))
	f.Add("under_score.example.com", "xn--bcher-kva.example", now+25*365*86400, int64(1))
	f.Add("192.0.2.1", "2001:db8::1", int64(-1e9), int64(1))
	f.Add("::ffff:192.0.2.1", "fe80::1%b\xfccher", now, int64(0))
	f.Add("b\u00fccher.example", "", int64(1)<<34, int64(1)<<36)
	f.Add("a-name-of-more-than-sixty-four-characters.which-are-too-many-for-a-subject.example.com", "", now, int64(86400))
	f.Fuzz(func(t *testing.T, first, second string, from, lifetime int64) {
		serial, err := newSerial()
		if err != nil {
			t.Fatal(err)
		}
		r := &request{serial: serial, commonName: commonName(first), from: time.Unix(from, 0)}
		r.to = r.from.Add(time.Duration(lifetime) * time.Second)
		for _, name := range []string{first, second} {
			if addr, err := netip.ParseAddr(name); err == nil {
				r.addresses = append(r.addresses, addr)
			} else if name != "" {
				r.dns = append(r.dns, name)
			}
		}
		if len(r.dns)+len(r.addresses) == 0 {
			return
		}
		der, err := ca.sign(r, key.public)
		want, wantErr := ofTheLibrary(ca, key, r)
		var got *x509.Certificate
		if err == nil {
			got, err = x509.ParseCertificate(der)
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, the library: %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if !bytes.Equal(got.RawTBSCertificate, want.RawTBSCertificate) {
			t.Fatalf("signed\n%x\nthe library\n%x", got.RawTBSCertificate, want.RawTBSCertificate)
		}
		if err := got.CheckSignatureFrom(ca.cert); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkMint(b *testing.B) {
	ca, err := NewCA("box one")
	if err != nil {
		b.Fatal(err)
	}
	key, err := newLeafKey()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ca.issue(key, []string{"a.example.com"}, time.Now(), leafLifetime); err != nil {
			b.Fatal(err)
		}
	}
}
