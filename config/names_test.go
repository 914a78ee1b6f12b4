package config

import (
	"strings"
	"testing"

	"boxgate/policy"
)

const testBox = policy.BoxID("0123456789abcdef")

// TestParseHostName: a host name means a port of a box in one way at most.
func TestParseHostName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		names, label string
		port         uint16 // 0: not a port of the box
	}{
		{namesFlat, "0123456789abcdef-3000", 3000},
		{namesFlat, "3000-0123456789abcdef", 3000},
		{namesNested, "3000-0123456789abcdef", 3000},
		{namesNested, "3000.0123456789abcdef", 3000},
		{namesNested, "0123456789abcdef-3000", 0},
		{namesFlat, "3000.0123456789abcdef", 0},
		{namesFlat, "65535-0123456789abcdef", 65535},
		{namesFlat, "65536-0123456789abcdef", 0},
		{namesFlat, "0-0123456789abcdef", 0},
		{namesFlat, "03000-0123456789abcdef", 0},
		{namesFlat, "+300-0123456789abcdef", 0},
		{namesFlat, "-3000-0123456789abcdef", 0},
		{namesFlat, "3000--0123456789abcdef", 0},
		{namesFlat, "3000-0123456789ABCDEF", 0}, // host names are in lower case here
		{namesFlat, "3000-0123456789abcde", 0},
		{namesFlat, "3000-0123456789abcdef0", 0},
		{namesFlat, "3000-0123456789abcdef-3001", 0},
		{namesFlat, "a.3000-0123456789abcdef", 0},
		{namesFlat, "3000-x", 0},
		{namesFlat, "api", 0},
		{namesFlat, "", 0},
	} {
		i := Ingress{Domain: "preview.test", Names: c.names}
		id, port, ok := i.ParseHostName(c.label + ".preview.test")
		if ok != (c.port != 0) || port != c.port && ok || ok && id != testBox {
			t.Errorf("%s, %s: %q %d %v", c.names, c.label, id, port, ok)
		}
	}
	for _, host := range []string{"3000-0123456789abcdef.preview.test.evil", "3000-0123456789abcdefpreview.test", "3000-0123456789abcdef.other.test", "3000-0123456789abcdef"} {
		if _, _, ok := (Ingress{Domain: "preview.test"}).ParseHostName(host); ok {
			t.Errorf("%s is a port of a box", host)
		}
	}
}

// FuzzParseHostName: whatever is parsed is one of the two names of exactly this port of this box.
func FuzzParseHostName(f *testing.F) {
	f.Add("3000-0123456789abcdef.preview.test", false)
	f.Add("0123456789abcdef-3000.preview.test", false)
	f.Add("3000.0123456789abcdef.preview.test", true)
	f.Fuzz(func(t *testing.T, host string, nested bool) {
		i := Ingress{Domain: "preview.test", Names: namesFlat}
		if nested {
			i.Names = namesNested
		}
		id, port, ok := i.ParseHostName(host)
		if !ok {
			return
		}
		own, other := i.HostName(id, port), strings.Replace(Ingress{Domain: i.Domain, Names: namesNested}.HostName(id, port), ".", "-", 1)
		if port == 0 || host != own && host != other {
			t.Errorf("%q is port %d of %q, whose names are %q and %q", host, port, id, own, other)
		}
	})
}

// TestTokenHeaders: fields that requests need cannot have a token.
func TestTokenHeaders(t *testing.T) {
	t.Parallel()
	for list, wrong := range map[string]string{
		"X-Port-Token,E2b-Traffic-Access-Token": "", "Authorization": "another meaning", "cookie": "another meaning", "Content-Type": "another meaning",
		"Sec-WebSocket-Key": "another meaning", "Proxy-X": "another meaning", "X-Forwarded-For": "another meaning", "a b": "not the name",
		"X-A,x_a": "listed twice", "X-F": "forward_fields", "a,b,c,d,e,f,g,h,i": "more than 8",
	} {
		_, err := Parse("test.yaml", []byte("ingress: {forward_fields: [X-F], token_headers: ["+list+"]}"), nil)
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%s: %v", list, err)
		}
	}
}
