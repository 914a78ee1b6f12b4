package account

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"boxgate/internal/openid"
)

func TestAllow(t *testing.T) {
	t.Parallel()
	rules := &Rules{Emails: []string{"ann@example.org", "mike@example.org", "\u00fcte@example.org"}, Domains: []string{"friends.example"}, Groups: []string{"staff"}}
	for name, c := range map[string]struct {
		id   openid.Identity
		want bool
	}{
		"an address":            {openid.Identity{Email: "Ann@Example.org", Verified: true}, true},
		"a domain":              {openid.Identity{Email: "bob@friends.example", Verified: true}, true},
		"a group":               {openid.Identity{Email: "eve@evil.example", Verified: true, Groups: []string{"x", "staff"}}, true},
		"not verified":          {openid.Identity{Email: "ann@example.org"}, false},
		"a group, not verified": {openid.Identity{Email: "eve@evil.example", Groups: []string{"staff"}}, false},
		"another address":       {openid.Identity{Email: "eve@example.org", Verified: true}, false},
		"below the domain":      {openid.Identity{Email: "eve@x.friends.example", Verified: true}, false},
		"a domain alike":        {openid.Identity{Email: "eve@evilfriends.example", Verified: true}, false},
		"two addresses in one":  {openid.Identity{Email: "eve@evil.example@friends.example", Verified: true}, false},
		"a domain alone":        {openid.Identity{Email: "@friends.example", Verified: true}, false},
		"nobody":                {openid.Identity{Verified: true}, false},
		"a letter that folds":   {openid.Identity{Email: "mi\u212ae@example.org", Verified: true}, false},
		"a domain that folds":   {openid.Identity{Email: "bob@fr\u0130ends.example", Verified: true}, false},
		"beyond ASCII":          {openid.Identity{Email: "\u00fcte@example.org", Verified: true}, true},
		"the empty group":       {openid.Identity{Verified: true, Groups: []string{""}}, false},
	} {
		if got := rules.Allow(c.id); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if (*Rules)(nil).Allow(c.id) || (&Rules{}).Allow(c.id) {
			t.Errorf("%s: no rules let it in", name)
		}
	}
}

// A ticket is valid for one step, in the browser for which it was issued, once, until it expires.
func TestTickets(t *testing.T) {
	t.Parallel()
	d, now := NewDesk(openid.Config{}, 0, ""), time.Unix(1_800_000_000, 0)
	begun, cookie := d.Begin("u", "host", "/x", now)
	code := d.seal(toURL, Ticket{URL: "u", Host: "host", Bind: hash(cookie), ID: []byte("once"), Expires: now.Add(time.Minute).Unix(), Until: now.Add(time.Hour).Unix()})
	for name, finish := range map[string]func() error{
		"the first ticket as the last": func() error { _, _, err := d.Finish("u", begun, cookie, now); return err },
		"another URL":                  func() error { _, _, err := d.Finish("v", code, cookie, now); return err },
		"another browser":              func() error { _, _, err := d.Finish("u", code, newFlow(), now); return err },
		"no cookie":                    func() error { _, _, err := d.Finish("u", code, "", now); return err },
		"too late":                     func() error { _, _, err := d.Finish("u", code, cookie, now.Add(time.Minute)); return err },
		"of another gateway":           func() error { _, _, err := NewDesk(openid.Config{}, 0, "").Finish("u", code, cookie, now); return err },
		"changed":                      func() error { _, _, err := d.Finish("u", "A"+code[1:], cookie, now); return err },
		"the provider's answer in another browser": func() error {
			state := d.seal(fromProvider, Ticket{URL: "u", Host: "host", Flow: hash(cookie), Expires: now.Add(time.Minute).Unix()})
			_, _, err := d.Return(t.Context(), "error=denied&state="+state, newFlow(), now, nil)
			return err
		},
		"the last as the first": func() error { _, _, err := d.Send(t.Context(), code, now); return err },
	} {
		if err := finish(); !errors.Is(err, ErrTicket) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if next, until, err := d.Finish("u", code, cookie, now); err != nil || next != "/x" || !until.Equal(now.Add(time.Hour)) {
		t.Errorf("%s, %v, %v", next, until, err)
	}
	if _, _, err := d.Finish("u", code, cookie, now); !errors.Is(err, ErrTicket) {
		t.Errorf("again: %v", err)
	}
}

// Neither the provider nor a reader of the addresses on the way learns which path the visitor opens at the URL.
func TestWhereAVisitorGoesIsNotTold(t *testing.T) {
	t.Parallel()
	d, now := NewDesk(openid.Config{}, 0, ""), time.Unix(1_800_000_000, 0)
	for next, want := range map[string]string{
		"/reset?app_secret=hunter2&x": "/reset?app_secret=hunter2&x", "": "", "/": "/",
		"/" + strings.Repeat("&", nextMost-1): "/" + strings.Repeat("&", nextMost-1), "/" + strings.Repeat("a", nextMost): "/",
	} {
		ticket, cookie := d.Begin("u", "host", next, now)
		told, err := base64.RawURLEncoding.DecodeString(ticket)
		if err != nil || strings.Contains(string(told), "hunter2") || len(ticket) > 500 || len(SetCookie(cookie)) > 2000 {
			t.Errorf("%.50q: %d bytes, %v: %q", next, len(ticket), err, told)
		}
		state, err := d.open(toProvider, ticket, now)
		if err != nil {
			t.Fatal(err)
		}
		state.ID = []byte(next + "once")
		if got, _, err := d.Finish("u", d.seal(toURL, state), FlowOf([]string{Cookie + "=" + cookie}), now); err != nil || got != want {
			t.Errorf("%.50q: %.50q, %v", next, got, err)
		}
		state.ID = []byte(next + "again")
		bare, _, _ := strings.Cut(cookie, ".")
		if _, _, err := d.Finish("u", d.seal(toURL, state), withNext(bare, "/elsewhere"), now); !errors.Is(err, ErrTicket) {
			t.Errorf("%.50q: the path of the cookie can be changed: %v", next, err)
		}
	}
}

func TestFlowOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		Cookie + "=a": "a", "x=y; " + Cookie + "=a; z=": "a", Cookie + "=a; " + Cookie + "=b": "", "x" + Cookie + "=a": "", "": "",
		"\u2000" + Cookie + "=b; " + Cookie + "=a": "a", "\u2000" + Cookie + "=b": "", // a sibling host can set such a cookie
	} {
		if got := FlowOf(strings.SplitAfter(line, "\n")); got != want {
			t.Errorf("%q: %q", line, got)
		}
	}
}

// TestTicketsOfAFleet: a ticket names its host, which alone opens it.
func TestTicketsOfAFleet(t *testing.T) {
	t.Parallel()
	d, now := NewDesk(openid.Config{}, 0, "a1b2c3"), time.Unix(1_800_000_000, 0)
	ticket, _ := d.Begin("u", "host", "/x", now)
	if got := HostOf(ticket); got != "a1b2c3" {
		t.Errorf("the host of %s: %q", ticket, got)
	}
	if _, err := d.open(toProvider, ticket, now); err != nil {
		t.Error(err)
	}
	_, bare, _ := strings.Cut(ticket, ".")
	for _, other := range []string{bare, "." + bare, "b1b2c3." + bare, "a1b2c3." + ticket} {
		if _, err := d.open(toProvider, other, now); !errors.Is(err, ErrTicket) {
			t.Errorf("%s: %v", other, err)
		}
	}
	if alone, _ := NewDesk(openid.Config{}, 0, "").Begin("u", "host", "/x", now); HostOf(alone) != "" {
		t.Errorf("without a fleet: %s", alone)
	}
}

func FuzzTicket(f *testing.F) {
	d, now := NewDesk(openid.Config{}, 0, ""), time.Unix(1_800_000_000, 0)
	ticket, _ := d.Begin("u", "host", "/x", now)
	f.Add(ticket)
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := d.open(toProvider, text, now); err == nil && text != ticket {
			t.Errorf("%q is a ticket", text)
		}
	})
}
