package egress_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/egress"
	"boxgate/api/stream"
	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// fixture serves the endpoints of this package.
type fixture struct {
	*apitest.Served
	host     *apitest.Host
	stopping chan struct{}
}

// serve serves the endpoints until the test ends, and creates a box.
func serve(t *testing.T) (*fixture, policy.BoxID) {
	t.Helper()
	f := &fixture{host: apitest.NewHost(t), stopping: make(chan struct{})}
	f.Served = apitest.Serve(t, f.host, (&egress.Endpoints{Boxes: f.host, Host: f.host, Rules: f.host, Versions: f.host, Bodies: apitest.Bodies, Stopping: f.stopping}).Routes())
	return f, policy.BoxID(f.host.Add(t, api.CreateRequest{Name: "web"}))
}

func TestEgress(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	f.host.AddDecision(apitest.Decision(id, 100, "first.example", policy.Allow))
	f.host.AddDecision(apitest.Decision(id, 200, "second.example", policy.Deny))
	f.host.AddDecision(apitest.Decision("other", 300, "third.example", policy.Deny))
	tests := []struct {
		path  string
		names string
	}{
		{"/v2/box/box1/egress", "first.example second.example"},
		{"/v2/egress", "first.example second.example third.example"},
		{"/v2/egress?denied=true", "second.example third.example"},
		{"/v2/box/box1/egress?since=150", "second.example"},
		{"/v2/box/box1/egress?since=1970-01-01T00:02:30Z", "second.example"},
		{"/v2/box/box1/egress?since=10m", ""},
	}
	for _, tt := range tests {
		got := f.Call(t, "GET", tt.path, "")
		var names []string
		for line := range strings.Lines(got.Text) {
			var e audit.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%s: %q: %v", tt.path, line, err)
			}
			names = append(names, e.Name)
		}
		if strings.Join(names, " ") != tt.names || got.Header.Get("Content-Type") != stream.NDJSON {
			t.Errorf("%s: %q, want %q", tt.path, names, tt.names)
		}
	}
	lines := 0
	err := api.NewClient(f.URL, apitest.Key).Lines(t.Context(), "/v2/egress", func([]byte) error { lines++; return nil })
	if err != nil || lines != 3 {
		t.Errorf("the client reads %d lines: %v", lines, err)
	}
	sse := f.Call(t, "GET", "/v2/box/box1/egress?since=150", "", func(r *http.Request) { r.Header.Set("Accept", stream.EventStream) })
	if sse.Header.Get("Content-Type") != stream.EventStream || !strings.HasPrefix(sse.Text, "event: decision\ndata: {") || !strings.HasSuffix(sse.Text, "}\n\n") {
		t.Errorf("%q", sse.Text)
	}
	for _, bad := range []string{"since=yesterday", "follow=maybe", "denied=2", "box=box1", "follow=true&follow=true"} {
		if got := f.Call(t, "GET", "/v2/box/box1/egress?"+bad, ""); got.StatusCode != 422 {
			t.Errorf("%s: %s", bad, got.Status)
		}
	}
}

// A client that reconnects sends its position and receives the rest, with a notice if it may be incomplete.
func TestResume(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	for i, name := range []string{"a.example", "b.example", "c.example"} {
		f.host.AddDecision(apitest.Decision(id, int64(100+i), name, policy.Allow))
	}
	for after, want := range map[string]string{
		"run1-2": "c", "run1-3": "", "run1-0": "gap abc", "run0-2": "gap abc",
	} {
		got := f.Call(t, "GET", "/v2/egress?after="+after, "")
		var seen string
		if strings.Contains(got.Text, `{"gap":"`) {
			seen = "gap "
		}
		for _, name := range []string{"a", "b", "c"} {
			if strings.Contains(got.Text, name+".example") {
				seen += name
			}
		}
		if seen != want || got.Header.Get("Boxgate-Run") != "run1" {
			t.Errorf("after %s: %s, want %q", after, got.Text, want)
		}
	}
	for _, bad := range []string{"3", "-3", "run1-", "run1-x"} {
		if got := f.Call(t, "GET", "/v2/egress?after="+bad, ""); got.StatusCode != 422 {
			t.Errorf("%s: %s", bad, got.Status)
		}
	}
}

// A name chosen by a box can neither control the terminal of a reader nor break a line.
func TestEgressIsEscaped(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	name := "a\x1b[2J\nb\u009b31m\x7f\u202ec\u2028"
	f.host.AddDecision(apitest.Decision(id, 100, name, policy.Deny))
	got := f.Call(t, "GET", "/v2/box/box1/egress", "")
	if strings.Count(got.Text, "\n") != 1 || strings.ContainsAny(strings.TrimSuffix(got.Text, "\n"), "\x1b\x7f\u009b\u202e\u2028\n") {
		t.Errorf("%q", got.Text)
	}
	var e audit.Event
	if err := json.Unmarshal([]byte(got.Text), &e); err != nil {
		t.Error(err)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	if got := f.Call(t, "POST", "/v2/box/"+string(id)+"/egress/explain", `{"host":"a.example","path":"/","query":""}`).JSON(t); fmt.Sprint(got["unknown"]) != "[headers]" {
		t.Errorf("%v", got)
	}
	for body, rule := range map[string]string{
		`{"host":"a.example","path":"/a","query":"b=c","headers":{"X-B":"2","X-A":"1"}}`: "http a.example invalid IP 443 tcp  /a[{X-A 1} {X-B 2}]b=c",
		`{"host":"API.Example.COM."}`:                                       "conn api.example.com invalid IP 443 tcp  ",
		`{"ip":"192.0.2.1","port":53,"protocol":"udp"}`:                     "conn  192.0.2.1 53 udp  ",
		`{"host":"a.example","ip":"2001:db8::1","method":"GET","path":"/"}`: "http a.example 2001:db8::1 443 tcp GET / messages [{  true}]  operations []",
		`{"ip":"192.0.2.1","protocol":"icmp"}`:                              "conn  192.0.2.1 0 icmp  ",
	} {
		got := f.Call(t, "POST", "/v2/box/"+string(id)+"/egress/explain", body).JSON(t)
		if got["rule"] != rule || got["verdict"] != "deny" || got["reason"] != "not_allowed" || fmt.Sprint(got["beaten"]) != "[*.beaten.example]" {
			t.Errorf("%s: %v", body, got)
		}
	}
}

// TestExplainReadsMessages: the policy gets the messages of a body, or of a request that has none.
func TestExplainReadsMessages(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	call := `"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"search\"}}"`
	for body, want := range map[string]string{
		`{"host":"a.test","method":"POST","body":` + call + `}`:                          "messages [{tools/call search false}]  operations []",
		`{"host":"a.test","body":` + call + `,"headers":{"Content-Type":"text/plain"}}`:  "media type",
		`{"host":"a.test","body":` + call + `,"headers":{"Mcp-Name":"other"}}`:           "differs",
		`{"host":"a.test","method":"GET"}`:                                               "[{  true}]",
		`{"host":"a.test","method":"POST","query":"a"}`:                                  "POST a",
		`{"host":"a.test","body":"{\"query\":\"{a}\"}"}`:                                 "operations [{query  [a] }]",
		`{"host":"a.test","method":"GET","query":"query=mutation%7Ba%7D"}`:               "operations [{mutation  [a] }]",
		`{"host":"a.test","method":"GET","query":"query=%7Ba%7D","headers":{"X-A":"1"}}`: "operations [{query  [a] }]",
	} {
		got := f.Call(t, "POST", "/v2/box/"+string(id)+"/egress/explain", body).JSON(t)
		if rule := fmt.Sprint(got["rule"]); !strings.Contains(rule, want) || strings.Contains(rule, "messages") != (want != "POST a") {
			t.Errorf("%s: %v", body, got)
		}
	}
}

// TestExplainResolves: with resolve, the addresses of the name are decided on and listed, or the missing address is reported.
// Without it, with an address, and for a name that the gateway would not look up, the name alone is decided on.
func TestExplainResolves(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	f.host.Mu.Lock()
	f.host.Addresses = map[string][]netip.Addr{"a.example": {netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:192.0.2.1")}, "none.example": nil}
	f.host.Mu.Unlock()
	path := "/v2/box/" + string(id) + "/egress/explain"
	for body, want := range map[string]string{
		`{"host":"a.example","resolve":true}`:                  `"addresses":[{"address":"10.0.0.1","verdict":"deny","reason":"not_allowed","rule":"conn a.example 10.0.0.1 443 tcp  "},{"address":"192.0.2.1",`,
		`{"host":"none.example","resolve":true}`:               `"lookup_error":"it does not exist, or has no address"`,
		`{"host":"other.example","resolve":true}`:              "",
		`{"host":"a.example"}`:                                 "",
		`{"host":"a.example","ip":"192.0.2.9","resolve":true}`: "",
	} {
		got := f.Expect(t, 200, "POST", path, body).Text
		if looked := strings.Contains(got, "addresses") || strings.Contains(got, "lookup_error"); looked != (want != "") || !strings.Contains(got, want) {
			t.Errorf("%s: %s", body, got)
		}
	}
}

// TestFollowers: a follower receives past and new decisions, each once, and the number of lost ones, until the server
// stops.
func TestFollowers(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	f.host.AddDecision(apitest.Decision(id, 100, "past.example", policy.Allow))
	req, err := http.NewRequestWithContext(t.Context(), "GET", f.URL+"/v2/box/box1/egress?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Box-Api-Key", apitest.Key)
	resp, err := f.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("%q, %v; want %s", lines.Text(), lines.Err(), want)
		}
	}
	next("past.example")
	again := apitest.Decision(id, 100, "past.example", policy.Allow)
	again.Seq = 1
	f.host.AddDecision(again)
	f.host.AddDecision(apitest.Decision(id, 200, "later.example", policy.Deny))
	next(`{"lost":3}`)
	next("later.example")
	close(f.stopping)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "example") {
			t.Errorf("one more: %s", lines.Text())
		}
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the stream does not end properly: %v", err)
	}
}

// TestSearch: decisions on disk are selected by box, time and reason. An invalid query gets an error status, and a
// truncated response is aborted.
func TestSearch(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	f.host.AddDecision(apitest.Decision(id, 100, "first.example", policy.Deny))
	f.host.AddDecision(apitest.Decision(id, 200, "second.example", policy.Deny))
	f.host.AddDecision(apitest.Decision("gone", 300, "third.example", policy.Deny))
	paths := map[string]string{}
	for _, rt := range (&egress.Endpoints{}).Routes() {
		paths[rt.ID] = strings.Replace(rt.Path, "{id}", "web", 1)
	}
	own, all := paths["searchBoxDecisions"], paths["searchDecisions"]
	for path, want := range map[string]string{
		own: "first second", own + "?since=150": "second", all + "?box=web": "first second", all + "?box=gone": "third", own + "?reason=other": "",
	} {
		got := f.Expect(t, 200, "GET", path, "")
		var names []string
		for line := range strings.Lines(got.Text) {
			var e audit.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			names = append(names, strings.TrimSuffix(e.Name, ".example"))
		}
		if strings.Join(names, " ") != want {
			t.Errorf("%s: %q, want %q", path, names, want)
		}
	}
	for _, bad := range []string{own + "?since=yesterday", own + "?until=x", own + "?box=web", all + "?denied=2", all + "?host=a&host=b"} {
		f.Expect(t, 422, "GET", bad, "")
	}
	f.Expect(t, 404, "GET", strings.Replace(own, "web", "nobody", 1), "")
}

func TestObservations(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	f.host.AddDecision(apitest.Decision(id, 100, "first.example", policy.Allow))
	f.host.AddDecision(apitest.Decision(id, 200, "second.example", policy.Deny))
	f.host.AddDecision(apitest.Decision("other", 300, "third.example", policy.Deny))
	for query, want := range map[string]string{
		"": "first.example second.example", "?denied=true": "second.example", "?since=150": "second.example", "?since=1h": "",
	} {
		got := f.Call(t, "GET", "/v2/box/box1/egress/observations"+query, "")
		var view struct {
			Observations   []struct{ Name string }
			Overflow, Lost int
		}
		if err := json.Unmarshal([]byte(got.Text), &view); err != nil {
			t.Fatalf("%s: %q: %v", query, got.Text, err)
		}
		var names []string
		for _, o := range view.Observations {
			names = append(names, o.Name)
		}
		if strings.Join(names, " ") != want || view.Overflow != 2 || view.Lost != 1 {
			t.Errorf("%s: %s", query, got.Text)
		}
	}
	for _, bad := range []string{"since=yesterday", "denied=2", "box=box1"} {
		if got := f.Call(t, "GET", "/v2/box/box1/egress/observations?"+bad, ""); got.StatusCode != 422 {
			t.Errorf("%s: %s", bad, got.Status)
		}
	}
	if got := f.Call(t, "GET", "/v2/box/nope/egress/observations", ""); got.StatusCode != 404 {
		t.Error(got.Status)
	}
}

// The traffic of a deleted box can be read by its ID.
func TestPastObservations(t *testing.T) {
	t.Parallel()
	f, _ := serve(t)
	f.host.AddDecision(apitest.Decision("gone", 100, "first.example", policy.Allow))
	got := f.Call(t, "GET", "/v2/egress/observations?box=gone", "")
	if got.StatusCode != 200 || !strings.Contains(got.Text, "first.example") {
		t.Error(got.Status, got.Text)
	}
	for query, status := range map[string]int{"": 422, "?box=": 422, "?box=unknown": 200, "?box=gone&since=x": 422} {
		if got := f.Call(t, "GET", "/v2/egress/observations"+query, ""); got.StatusCode != status || strings.Contains(got.Text, "first.example") {
			t.Errorf("%s: %s %s", query, got.Status, got.Text)
		}
	}
}

// TestLearned: the proposal is for allowed connections of the box since a time, and says that it is incomplete.
func TestLearned(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	for _, e := range []audit.Event{
		apitest.Decision(id, 100, "first.example", policy.Allow), apitest.Decision(id, 200, "second.example", policy.Deny),
		apitest.Decision("other", 300, "third.example", policy.Allow),
	} {
		e.Port = 443
		f.host.AddDecision(e)
	}
	claimed := apitest.Decision(id, 120, "claimed.example", policy.Allow) // in a ClientHello to an address that the policy and a ceiling allow
	claimed.Port, claimed.Reason, claimed.Rule = 443, name.ReasonNotDenied, "policy.ceiling"
	f.host.AddDecision(claimed)
	for query, want := range map[string]string{"": `"allowed_domains":["first.example:443"]`, "?since=150": `"policy":{"mode":"deny-all"}`} {
		got := f.Call(t, "GET", "/v2/box/box1/egress/learned"+query, "")
		for _, want := range []string{want, `"audited":false`, `"overflow":2`, `"lost":1`} {
			if got.StatusCode != 200 || !strings.Contains(got.Text, want) {
				t.Errorf("%q: %s, without %s", query, got.Text, want)
			}
		}
	}
	if got := f.Call(t, "GET", "/v2/box/box1/egress/learned?since=yesterday", ""); got.StatusCode != 422 {
		t.Error(got.Status)
	}
	if got := f.Call(t, "GET", "/v2/box/nope/egress/learned", ""); got.StatusCode != 404 {
		t.Error(got.Status)
	}
}
