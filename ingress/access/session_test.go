package access

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

func TestOnlyItsOwnURLAcceptsASession(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	k, s := NewKey().For(Sessions), New(true, now, now.Add(time.Hour))
	value := k.Value("url-1", s)
	if got, ok := k.Open("url-1", value, now); !ok || got != s {
		t.Fatalf("%v, want %v", got, s)
	}
	for name, open := range map[string]func() (Session, bool){
		"another URL":          func() (Session, bool) { return k.Open("url-2", value, now) },
		"the URL created anew": func() (Session, bool) { return NewKey().Open("url-1", value, now) },
		"no key":               func() (Session, bool) { return Key{}.Open("url-1", Key{}.Value("url-1", s), now) },
		"the key of links":     func() (Session, bool) { return k.For(Links).Open("url-1", value, now) },
		"its last moment":      func() (Session, bool) { return k.Open("url-1", value, s.Expires) },
		"cut short":            func() (Session, bool) { return k.Open("url-1", value[:len(value)-4], now) },
		"nothing":              func() (Session, bool) { return k.Open("url-1", "", now) },
	} {
		if got, ok := open(); ok {
			t.Errorf("%s is accepted: %v", name, got)
		}
	}
}

// No bit of a cookie can be changed, including its times and its kind.
func TestAChangedCookieIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	k := NewKey()
	raw, err := base64.RawURLEncoding.DecodeString(k.Value("u", New(false, now, now.Add(time.Hour))))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(raw) {
		changed := append([]byte(nil), raw...)
		changed[i/8] ^= 1 << (i % 8)
		if s, ok := k.Open("u", base64.RawURLEncoding.EncodeToString(changed), now); ok {
			t.Errorf("bit %d changed: %v", i, s)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	k := NewKey()
	good := Cookie + "=" + k.Value("u", New(false, now, now.Add(time.Hour)))
	bad := Cookie + "=bad"
	for _, c := range []struct {
		lines []string
		want  bool
	}{
		{nil, false},
		{[]string{"a=b"}, false},
		{[]string{good}, true},
		{[]string{"a=b;" + good + "; c=d"}, true},
		{[]string{"a=b", good}, true},
		{[]string{bad + "; " + good}, true},
		{[]string{"x" + good}, false},
		{[]string{"a=" + good}, false},
		{[]string{"a=b;\t " + good}, true},
		{[]string{"\u2000" + good}, false}, // a sibling host can set such a cookie
		{[]string{strings.Repeat("\u2000"+bad+"; ", tries) + good}, true},
		{[]string{strings.Repeat(bad+"; ", 1000) + good}, false},
	} {
		if _, ok := k.Find("u", c.lines, now); ok != c.want {
			t.Errorf("%.80q: %v", c.lines, ok)
		}
	}
}

func TestAttributesOfTheCookie(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	set := NewKey().SetCookie("u", New(false, now, now.Add(time.Hour)), now)
	for _, want := range []string{"__Host-", "; Path=/;", "; Max-Age=3600;", "; Secure", "; HttpOnly", "; SameSite=Lax"} {
		if !strings.Contains(set, want) {
			t.Errorf("%s lacks %s", set, want)
		}
	}
	if strings.Contains(set, "Domain") {
		t.Error(set)
	}
}

func FuzzOpen(f *testing.F) {
	k := Key{1}
	now := time.Unix(1_800_000_000, 0)
	f.Add(k.Value("u", New(false, now, now.Add(time.Hour))))
	f.Fuzz(func(t *testing.T, value string) {
		if s, ok := k.Open("u", value, now); ok && k.Value("u", s) != value {
			t.Errorf("%q and %q are both the session %v", value, k.Value("u", s), s)
		}
	})
}

// Once more sessions have been ended than are remembered, all earlier sessions are ended.
func TestEnded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	var e Ended
	gone, stays := New(false, now, now.Add(time.Hour)), New(false, now, now.Add(time.Hour))
	e.Add(gone, now)
	if !e.Has(gone) || e.Has(stays) {
		t.Error("not the session that was ended")
	}
	for range endedMost + 100 { // these sessions expire
		e.Add(New(false, now, now.Add(time.Minute)), now)
		now = now.Add(time.Second)
	}
	if !e.Has(gone) || e.Has(stays) {
		t.Error("sessions that are over count")
	}
	if again := NewEnded(e.All()); !again.Has(gone) || again.Has(stays) {
		t.Error("not the same after a restart")
	}
	for range endedMost + 1 {
		e.Add(New(false, now, now.Add(time.Hour)), now)
	}
	if again := NewEnded(e.All()); !e.Has(stays) || !again.Has(gone) || !again.Has(stays) {
		t.Error("a session that was ended may be back")
	}
	if later := New(false, now.Add(2*time.Second), now.Add(time.Hour)); e.Has(later) {
		t.Error("nobody can sign in any more")
	}
}
