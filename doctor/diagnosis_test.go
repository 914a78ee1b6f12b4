package doctor

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"boxgate/doctor/cause"
	"boxgate/doctor/probe"
)

// answered is the view of a client that got a response.
func answered(name, digest string) probe.Client {
	return probe.Client{Name: name, Proto: "HTTP/1.1", Status: 200, Digest: digest}
}

func failedClient(name string) probe.Client { return probe.Client{Name: name, Error: "it failed"} }

// way returns a report of a way with an address that works.
func way(strict, lenient probe.Client, causes ...cause.ID) probe.Report {
	return probe.Report{Attempts: []probe.Attempt{{}}, Causes: causes, Clients: []probe.Client{strict, lenient}}
}

// TestVerdicts: the ways are compared.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	works := way(answered(probe.Strict, "a"), answered(probe.Lenient, "a"))
	fails := way(failedClient(probe.Strict), failedClient(probe.Lenient))
	lenientOnly := way(failedClient(probe.Strict), answered(probe.Lenient, "a"), cause.FoldedField)
	for name, tt := range map[string]struct {
		direct, spliced, intercepted probe.Report
		verdict                      Verdict
		findings                     string
	}{
		"all work":                {works, works, works, Same, ""},
		"interception fails":      {works, works, fails, Worse, "unknown"},
		"for a known cause":       {lenientOnly, lenientOnly, fails, Worse, "folded-field"},
		"interception repairs it": {lenientOnly, lenientOnly, works, Better, "folded-field"},
		"all fail":                {fails, fails, fails, Same, ""},
		"others may work":         {way(failedClient(probe.Strict), failedClient(probe.Lenient), cause.UnsupportedSuite), fails, fails, Worse, "suite-unsupported"},
		"other content":           {works, works, way(answered(probe.Strict, "b"), answered(probe.Lenient, "b")), Worse, "content-differs"},
		"content varies":          {works, way(answered(probe.Strict, "a"), answered(probe.Lenient, "c")), way(answered(probe.Strict, "b"), answered(probe.Lenient, "d")), Same, "content-varies"},
		"splicing fails":          {works, fails, works, Same, "spliced-fails"},
		"no address":              {probe.Report{Causes: []cause.ID{cause.Unresolved}}, fails, fails, Unreachable, "name-unresolved"},
	} {
		d := Diagnosis{Host: "a.example", Port: 443, Box: "demo"}
		d.add(Direct, tt.direct)
		d.add(Spliced, tt.spliced)
		d.add(Intercepted, tt.intercepted)
		d.conclude(tt.direct)
		var ids []string
		for _, f := range d.Findings {
			ids = append(ids, string(f.ID))
		}
		if got := strings.Join(ids, " "); got != tt.findings || d.Verdict != tt.verdict || len(d.Advice) == 0 {
			t.Errorf("%s: %s, findings %q, advice %q; want %s, %q", name, d.Verdict, got, d.Advice, tt.verdict, tt.findings)
		}
	}
}

// TestTextOfServersIsEscaped: no text of a server or box reaches the diagnosis with control bytes.
func TestTextOfServersIsEscaped(t *testing.T) {
	t.Parallel()
	const bad = "a\x1b[2J\r\n\u009b31m\u202eb\x00\xff"
	client := probe.Client{
		Name: probe.Strict, Error: bad, ALPN: bad, Proto: bad, Status: 200, Refusal: bad, Fields: map[string]string{"Location": bad}, Version: bad, Suite: bad, Group: bad,
		Framing: bad, Digest: bad,
	}
	r := probe.Report{
		Lookup: bad, Attempts: []probe.Attempt{{Error: bad}}, Offer: bad, Subject: bad, Idle: bad, Clients: []probe.Client{client}, Causes: []cause.ID{bad},
	}
	d := Diagnosis{Host: "a.example", Port: 443}
	for _, name := range []string{Direct, Spliced, Intercepted} {
		d.add(name, r)
	}
	d.conclude(r)
	text := fmt.Sprintf("%+v", d)
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
		t.Errorf("%q", text)
	}
	if encoded, err := json.Marshal(d); err != nil || len(encoded) > 64<<10 {
		t.Errorf("%d bytes, %v", len(encoded), err)
	}
}
