package link

import (
	"encoding/base64"
	"path"
	"reflect"
	"strings"
	"testing"
	"time"

	"boxgate/ingress/access"
)

var now = time.Unix(1_800_000_000, 0)

func TestOnlyItsOwnURLAcceptsALink(t *testing.T) {
	t.Parallel()
	secret := access.NewKey()
	k := secret.For(access.Links)
	l := Link{Expires: now.Add(time.Hour), Prefix: "/files", Methods: []string{"GET", "HEAD"}}
	signature := Sign(k, "u", l)
	if got, ok := Open(k, "u", signature); !ok || !reflect.DeepEqual(got, l) {
		t.Fatalf("%+v, want %+v", got, l)
	}
	for name, open := range map[string]func() (Link, bool){
		"another URL":          func() (Link, bool) { return Open(k, "v", signature) },
		"the URL created anew": func() (Link, bool) { return Open(access.NewKey(), "u", signature) },
		"no key":               func() (Link, bool) { return Open(access.Key{}, "u", Sign(access.Key{}, "u", l)) },
		"nothing":              func() (Link, bool) { return Open(k, "u", "") },
		"too much":             func() (Link, bool) { return Open(k, "u", strings.Repeat("A", 10000)) },
		"a session": func() (Link, bool) {
			return Open(k, "u", secret.For(access.Sessions).Value("u", access.New(false, now, now.Add(time.Hour))))
		},
	} {
		if got, ok := open(); ok {
			t.Errorf("%s: %+v", name, got)
		}
	}
	raw, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(raw) {
		changed := append([]byte(nil), raw...)
		changed[i/8] ^= 1 << (i % 8)
		if got, ok := Open(k, "u", base64.RawURLEncoding.EncodeToString(changed)); ok {
			t.Errorf("bit %d changed: %+v", i, got)
		}
	}
}

func TestPermits(t *testing.T) {
	t.Parallel()
	l := Link{Expires: now.Add(time.Hour), Prefix: "/files/a b", Methods: []string{"GET"}}
	for path, want := range map[string]bool{
		"/files/a%20b": true, "/files/a b": true, "/files/a%20b/": true, "/files/a%20b/c%c3%bc": true, "/%66iles/a%20b/c": true,
		"/files": false, "/files/a": false, "/files/a%20bc": false, "/Files/a%20b": false, "": false, "files/a%20b": false,
		"/files/a%20b/../c": false, "/files/a%20b/%2e%2e/c": false, "/files/a%20b/%2E%2E%2Fc": false, "/files/a%20b/..;/c": false, "/files/a%20b/..;x=y/c": false,
		"/files/a%20b/%252e%252e/c": false, "/files/a%20b/..%5cc": false, `/files/a%20b/..\c`: false, "/files//a%20b": false, "/files/a%20b//c": false,
		"/files/a%20b/%00": false, "/files/a%20b/%0a": false, "/files/a%20b/%c0%ae%c0%ae/c": false, "/files/a%20b/%zz": false, "/files/a%20b/...": false,
		"/./files/a%20b": false, "//files/a%20b": false, "/x/../files/a%20b": false, "/files/a%20b;/../..": false, "/files/a%20b/%3fx": false,
	} {
		if got := l.Permits("GET", path, now); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
	for name, c := range map[string]struct {
		l      Link
		method string
		at     time.Time
		want   bool
	}{
		"another method": {l, "POST", now, false}, "its last moment": {l, "GET", l.Expires, false}, "just before": {l, "GET", l.Expires.Add(-1), true},
		"no prefix": {Link{Expires: l.Expires, Methods: l.Methods}, "GET", now, false}, "nothing": {Link{}, "GET", time.Time{}, false},
		"everything": {Link{Expires: l.Expires, Methods: l.Methods, Prefix: "/"}, "GET", now, true},
		"below only": {Link{Expires: l.Expires, Methods: l.Methods, Prefix: "/files/a b/"}, "GET", now, false},
	} {
		if got := c.l.Permits(c.method, "/files/a%20b", c.at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A program that resolves a path permitted by a link ends at the prefix or below it.
func FuzzPermits(f *testing.F) {
	for _, s := range []string{"/files/a", "/files/../x", "/files/%2e%2e/x", "/files/..%2fx", "/files/a/b/"} {
		f.Add(s)
	}
	l := Link{Expires: now.Add(time.Hour), Prefix: "/files", Methods: []string{"GET"}}
	f.Fuzz(func(t *testing.T, sent string) {
		if !l.Permits("GET", sent, now) {
			return
		}
		canonical, ok := Canonical(sent)
		if clean := path.Clean(canonical); !ok || clean != "/files" && !strings.HasPrefix(clean, "/files/") {
			t.Errorf("%q is %q", sent, clean)
		}
		if again, ok := Canonical(Escape(canonical)); !ok || again != canonical {
			t.Errorf("%q is %q, then %q", sent, canonical, again)
		}
	})
}

func FuzzOpen(f *testing.F) {
	k := access.Key{1}
	f.Add(Sign(k, "u", Link{Expires: now, Prefix: "/", Methods: Methods}))
	f.Fuzz(func(t *testing.T, signature string) {
		if l, ok := Open(k, "u", signature); ok && Sign(k, "u", l) != signature {
			t.Errorf("%q and %q are both %+v", signature, Sign(k, "u", l), l)
		}
	})
}
