package preview

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/api/spec"
	"boxgate/observe/replay"
	"boxgate/policy"
	"boxgate/policy/authority"
)

// TestParseDestination: a name needs one port, addresses have none, and wildcards below public suffixes are refused.
func TestParseDestination(t *testing.T) {
	for _, c := range []struct{ host, port, entry, at string }{
		{"api.example.com", "443", "api.example.com:443", ""},
		{" API.example.com. ", " 8443 ", "api.example.com:8443", ""},
		{"api.example.com:8443", "", "api.example.com:8443", ""},
		{"api.example.com:8443", "443", "", "/port"},
		{"api.example.com", "", "", "/port"},
		{"api.example.com", "0", "", "/port"},
		{"api.example.com", "65536", "", "/port"},
		{"api.example.com", "https", "", "/port"},
		{"*.example.com", "443", "*.example.com:443", ""},
		{"*", "443", "", "/host"},
		{"*.com", "443", "", "/host"},
		{"*.github.io", "443", "", "/host"},
		{"", "443", "", "/host"},
		{"<img src=x onerror=alert(1)>", "443", "", "/host"},
		{"192.0.2.1", "443", "192.0.2.1", ""},
		{"::ffff:192.0.2.1", "", "192.0.2.1", ""},
		{"[2001:db8::1]", "443", "2001:db8::1", ""},
		{"192.0.2.0/24", "", "192.0.2.0/24", ""},
		{"192.0.2.1/24", "", "", "/host"},
		{"раураl.com", "443", "xn--l-7sba6dbr.com:443", ""},
	} {
		d, ps := ParseDestination(c.host, c.port)
		at := ""
		if len(ps.List) > 0 {
			at = ps.List[0].Pointer
		}
		if at != c.at || at == "" && d.Entry.String() != c.entry {
			t.Errorf("%q %q: %q, %v; want %q %q", c.host, c.port, d.Entry, ps.List, c.entry, c.at)
		}
	}
}

// TestConcerns: a person types a destination again if it is wider than one name and port, or may be taken for another one.
func TestConcerns(t *testing.T) {
	now := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{"paypal.com:443"}}
	for _, c := range []struct {
		host  string
		lasts time.Duration
		want  []string // a part of each concern
	}{
		{"api.example.com:443", time.Hour, nil},
		{"api.example.com:443", 0, nil},
		{"*.example.com:443", time.Hour, []string{"every name below example.com"}},
		{"*.example.com:443", 0, []string{"until somebody removes it"}},
		{"192.0.2.1", time.Hour, []string{"every port of the address"}},
		{"192.0.2.0/24", 0, []string{"all addresses in 192.0.2.0/24"}},
		{"paypa1.com:443", time.Hour, []string{"looks like paypal.com"}},
		{"*.xn--pypal-4ve.com:443", 0, []string{"every name below", "letters of Latin and Cyrillic"}},
		{"xn--bcher-kva.example:443", time.Hour, []string{"bücher.example"}},
	} {
		d, ps := ParseDestination(c.host, "")
		if len(ps.List) > 0 {
			t.Fatal(c.host, ps.List)
		}
		got := d.concerns(now, c.lasts)
		ok := len(got) == len(c.want)
		for i := range got {
			ok = ok && got[i].Retype && strings.Contains(got[i].Text, c.want[i])
		}
		if !ok {
			t.Errorf("%s for %v: %+v, want %q", c.host, c.lasts, got, c.want)
		}
	}
}

// TestSource: notes are at the lines of their pointers, or of the nearest value that the text has; a syntax error is at its own line.
func TestSource(t *testing.T) {
	text := "{\r\n  \"mode\": \"custom\",\r\n  \"allowed_domains\": [\r\n    \"a.example\",\r\n    \"b.example\"\r\n  ]\r\n}"
	for pointer, want := range map[string]int{
		"": 1, "/mode": 2, "/allowed_domains": 3, "/allowed_domains/0": 4, "/allowed_domains/1": 5, "/allowed_domains/2": 3, "/missing/0/x": 1, "odd": 1,
	} {
		if got := linesWithNotes(text, pointer); !slices.Equal(got, []int{want}) {
			t.Errorf("%q: %v, want %d", pointer, got, want)
		}
	}
	if got := linesWithNotes("{\n  \"mode\": \"custom\"\n  \"dns\": 1\n}", ""); !slices.Equal(got, []int{3}) {
		t.Errorf("a missing comma: %v", got)
	}
	if got := linesWithNotes("", ""); !slices.Equal(got, []int{1}) {
		t.Errorf("an empty text: %v", got)
	}
}

func linesWithNotes(text, pointer string) (list []int) {
	for _, line := range Source(text, []Note{{Pointer: pointer, Message: "x"}}) {
		if len(line.Notes) > 0 {
			list = append(list, line.Number)
		}
	}
	return list
}

// FuzzSource: each note has a line, whatever the text and the pointer are, and no line is lost.
func FuzzSource(f *testing.F) {
	f.Add("{\"a\": [1,\n2]}", "/a/1")
	f.Add("[[[[", "/0/0/0")
	f.Fuzz(func(t *testing.T, text, pointer string) {
		lines := Source(text, []Note{{Pointer: pointer}})
		notes := 0
		for _, l := range lines {
			notes += len(l.Notes)
		}
		if want := 1 + strings.Count(strings.ReplaceAll(text, "\r\n", "\n"), "\n"); notes != 1 || len(lines) != want {
			t.Errorf("%d notes in %d lines, want %d", notes, len(lines), want)
		}
	})
}

// FuzzParseDestination: an accepted destination has an entry that a policy accepts, and never one for names that anybody can have.
func FuzzParseDestination(f *testing.F) {
	f.Add("api.example.com", "443")
	f.Add("*.example.com:1", "")
	f.Add("::1/128", "")
	f.Fuzz(func(t *testing.T, host, port string) {
		d, ps := ParseDestination(host, port)
		if len(ps.List) > 0 {
			return
		}
		s := policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{d.Entry.String()}}
		if d.prefix.IsValid() {
			s.AllowedDomains, s.AllowedCIDRs = nil, s.AllowedDomains
		} else if d.pattern.Port() == 0 || d.pattern.Name().IsZero() {
			t.Errorf("%q %q: %s", host, port, d.Entry)
		}
		if _, err := policy.Compile(s, policy.Options{}); err != nil {
			t.Errorf("%q %q: %s: %v", host, port, d.Entry, err)
		}
	})
}

// TestWords: differences and outcomes are sentences.
func TestWords(t *testing.T) {
	for want, line := range map[string]authority.Line{
		"connections to a.example, port 443":                       {Kind: authority.KindName, Name: "a.example", Ports: []uint16{443}},
		"connections to every name":                                {Kind: authority.KindName, Name: "*"},
		"DNS queries for a.example":                                {Kind: authority.KindQuery, Name: "a.example"},
		"192.0.2.0/24 by TCP, UDP (some of it was allowed before)": {Kind: authority.KindAddress, Prefix: "192.0.2.0/24", Protocols: []policy.Protocol{policy.TCP, policy.UDP}, Some: true},
		"ports 53, 443 of allowed addresses by UDP":                {Kind: authority.KindPort, Ports: []uint16{53, 443}, Protocols: []policy.Protocol{policy.UDP}},
		"GET /x at a.example":                                      {Kind: authority.KindRequest, Hosts: []string{"a.example"}, Methods: []string{"GET"}, Paths: []string{"/x"}},
		"requests to a.example":                                    {Kind: authority.KindRequest, Hosts: []string{"a.example"}},
		"requests to a.example, which no rule judges any more":     {Kind: authority.KindUnjudged, Hosts: []string{"a.example"}},
		"connections by another upstream proxy, or without one":    {Kind: authority.KindProxy},
	} {
		if got := LineText(&line); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var r spec.Replay
	r.Traffic.Seen, r.Traffic.Opens.Count, r.Traffic.Denied.Count, r.Traffic.Unknown.Count = replay.Total{Count: 41}, 12, 28, 1
	if got := fmt.Sprint(Outcome(&r)); got != "[Opens 12 of the last 40 denials. The effect on 1 further decision is unknown.]" {
		t.Error(got)
	}
	if got := Outcome(&spec.Replay{Unobserved: true}); len(got) != 1 || !strings.Contains(got[0], "log.observations.size") {
		t.Error(got)
	}
}

// TestDigest: a preview that could not be encoded cannot be confirmed.
func TestDigest(t *testing.T) {
	if same("", "") || same("", digestOf(1)) || !same(digestOf(1, "a"), digestOf(1, "a")) || same(digestOf(1), digestOf(2)) {
		t.Error("digests")
	}
	if digestOf(func() {}) != "" {
		t.Error("a digest of a function")
	}
}
