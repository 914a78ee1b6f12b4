package story

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// event reads "SECONDS STAGE VERDICT NAME [TYPE]"; the box is b1, or the part of the name before a slash.
func event(t *testing.T, start time.Time, text string) audit.Event {
	t.Helper()
	f := strings.Fields(text)
	after, err := time.ParseDuration(f[0] + "s")
	if err != nil {
		t.Fatal(err)
	}
	e := audit.Event{Time: start.Add(after), Box: "b1", Stage: policy.Stage(f[1]), Reason: name.ReasonNotAllowed}
	switch f[2] {
	case "allow":
		e.Verdict, e.Reason = policy.Allow, name.ReasonAllowedDomain
	case "none":
		e.Verdict, e.Reason, e.RCode = policy.Allow, name.ReasonAllowedDomain, audit.NXDomain
	}
	e.Name = f[3]
	if box, of, ok := strings.Cut(f[3], "/"); ok {
		e.Box, e.Name = policy.BoxID(box), of
	}
	if len(f) > 4 {
		e.Method = f[4]
	}
	return e
}

func shown(e audit.Event) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", e.Stage, e.Verdict, e.Name, e.Method))
}

// TestOneRequestIsOneDecision: look-ups of both families and the connection become one decision, in the order of the log. What
// the connection does not tell stays.
func TestOneRequestIsOneDecision(t *testing.T) {
	t.Parallel()
	for title, c := range map[string]struct{ given, want []string }{
		"refused":               {[]string{"0 dns deny a A", "0 dns deny a AAAA", "0.1 conn deny a"}, []string{"conn deny a"}},
		"allowed":               {[]string{"0 dns allow a AAAA", "0 dns allow a A", "0.1 conn allow a"}, []string{"conn allow a"}},
		"a late family":         {[]string{"0 dns allow a A", "0.1 conn allow a", "0.2 dns allow a AAAA"}, []string{"conn allow a"}},
		"only looked up":        {[]string{"0 dns deny a AAAA", "0 dns deny a A"}, []string{"dns deny a A"}},
		"no such name":          {[]string{"0 dns none a A", "0 dns none a AAAA"}, []string{"dns allow a A"}},
		"one family refused":    {[]string{"0 dns allow a A", "0 dns deny a AAAA", "0.1 conn allow a"}, []string{"dns deny a AAAA", "conn allow a"}},
		"a server is silent":    {[]string{"0 dns allow a A", "10 conn deny a"}, []string{"conn deny a"}},
		"much later":            {[]string{"0 dns allow a A", "60 conn allow a"}, []string{"dns allow a A", "conn allow a"}},
		"again much later":      {[]string{"0 conn allow a", "60 dns allow a A"}, []string{"conn allow a", "dns allow a A"}},
		"another type":          {[]string{"0 dns deny a TXT", "0 dns deny a A", "0.1 conn deny a"}, []string{"dns deny a TXT", "conn deny a"}},
		"another box":           {[]string{"0 dns deny a A", "0 conn deny b2/a"}, []string{"dns deny a A", "conn deny a"}},
		"the order is kept":     {[]string{"0 dns deny a A", "0.1 conn deny b", "0.2 kernel deny c"}, []string{"dns deny a A", "conn deny b", "kernel deny c"}},
		"what waits passes too": {[]string{"0 dns deny a A", "0.1 conn deny b", "0.2 conn deny a"}, []string{"conn deny b", "conn deny a"}},
	} {
		var got []string
		j := New(false, func(e audit.Event) { got = append(got, shown(e)) })
		start := time.Now()
		for _, text := range c.given {
			j.Add(event(t, start, text))
		}
		if j.Flush(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", title, got, c.want)
		}
	}
}

// TestConnectionsInTheKernelGetTheirName: an allowed connection without a name replaces the look-up that returned its address, and
// gets that name, unless two names have the address.
func TestConnectionsInTheKernelGetTheirName(t *testing.T) {
	t.Parallel()
	start := time.Now()
	with := func(text, addr, conn string) audit.Event {
		e := event(t, start, text)
		e.Addr, e.Conn = netip.MustParseAddr(addr), conn
		return e
	}
	nameless := func(e audit.Event) audit.Event { e.Name = ""; return e }
	for title, c := range map[string]struct {
		given []audit.Event
		want  []string
	}{
		"one name": {[]audit.Event{with("0 dns allow a A", "192.0.2.1", ""), with("0 dns allow a AAAA", "2001:db8::1", ""), nameless(with("0.1 kernel allow x", "2001:db8::1", "c1")), nameless(with("9 kernel allow x", "2001:db8::1", "c1"))},
			[]string{"kernel allow a", "kernel allow a"}},
		"two names":       {[]audit.Event{with("0 dns allow a A", "192.0.2.1", ""), with("0 dns allow b A", "192.0.2.1", ""), nameless(with("0.1 kernel allow x", "192.0.2.1", "c1"))}, []string{"dns allow a A", "dns allow b A", "kernel allow"}},
		"a denial":        {[]audit.Event{with("0 dns allow a A", "192.0.2.1", ""), nameless(with("0.1 kernel deny x", "192.0.2.1", "c1"))}, []string{"dns allow a A", "kernel deny"}},
		"another address": {[]audit.Event{with("0 dns allow a A", "192.0.2.1", ""), nameless(with("0.1 kernel allow x", "192.0.2.2", "c1"))}, []string{"dns allow a A", "kernel allow"}},
	} {
		var got []string
		j := New(false, func(e audit.Event) { got = append(got, strings.Join(strings.Fields(shown(e)), " ")) })
		for _, e := range c.given {
			j.Add(e)
		}
		if j.Flush(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", title, got, c.want)
		}
	}
}

// TestLookupsDoNotWaitForever: as decisions happen, a look-up without a connection is passed on after a second, other decisions
// immediately. A box that looks up many names does not make the joiner grow.
func TestLookupsDoNotWaitForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		j := New(true, func(e audit.Event) { got = append(got, shown(e)) })
		j.Add(event(t, time.Now(), "0 dns deny a A"))
		j.Add(event(t, time.Now(), "0 conn deny b"))
		if want := []string{"conn deny b"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		time.Sleep(2 * livePatience)
		synctest.Wait()
		if want := []string{"conn deny b", "dns deny a A"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		for i := range 10 * maxHeld {
			j.Add(event(t, time.Now(), fmt.Sprintf("0 dns deny n%d A", i)))
			j.Add(event(t, time.Now(), fmt.Sprintf("0 conn deny m%d", i)))
		}
		if len(j.held) > maxHeld || len(j.followed) > maxHeld {
			t.Errorf("%d look-ups and %d connections are kept", len(j.held), len(j.followed))
		}
		j.Flush()
		if len(got) != 2+20*maxHeld {
			t.Errorf("%d decisions were passed on", len(got))
		}
	})
}
