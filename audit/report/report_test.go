package report

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/audit/trail"
	"boxgate/policy"
	"boxgate/policy/name"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// day is a query for the day around noon.
var day = Query{Since: noon.Add(-12 * time.Hour), Until: noon.Add(12 * time.Hour)}

// request is an allowed, intercepted request.
func request(box, host string, version uint64, out int64, secrets ...string) audit.Event {
	return audit.Event{
		Time: noon, Box: policy.BoxID(box), BoxName: box + "-name", Stage: policy.StageHTTP, Protocol: policy.TCP, Name: host, Port: 443, Method: "GET", Path: "/v1",
		Verdict: policy.Allow, Action: audit.ActionIntercept, Reason: name.ReasonAllowedDomain, Rule: host, Version: version, Headers: []string{"Authorization"},
		Secrets: secrets, BytesOut: out, BytesIn: 1,
	}
}

// connection is the connection that carried requests, with the bytes of TLS.
func connection(box, host string, version uint64, out int64) audit.Event {
	e := request(box, host, version, out)
	e.Stage, e.Method, e.Path, e.Headers = policy.StageConn, "", "", nil
	return e
}

func refusal(box, host string, stage policy.Stage, count uint64) audit.Event {
	return audit.Event{
		Time: noon, Box: policy.BoxID(box), Stage: stage, Protocol: policy.TCP, Name: host, Port: 443, Verdict: policy.Deny, Action: audit.ActionRefuse,
		Reason: name.ReasonNotAllowed, Version: 1, Count: count,
	}
}

// made makes a report of decisions and entries.
func made(q Query, events []audit.Event, entries ...trail.Entry) Report {
	b := New(q)
	for _, e := range entries {
		b.Name(e)
	}
	for i := range events {
		b.Decision(&events[i])
	}
	for _, e := range entries {
		b.Entry(e)
	}
	return b.Report(Facts{Now: noon, CompleteSince: q.Since})
}

func change(seq uint64, box string, version uint64, what string) trail.Entry {
	return trail.Entry{
		Seq: seq, Time: noon, Kind: trail.Answer, Call: seq - 1, KeyID: "key_1", Key: "carol", Role: "admin", Remote: "192.0.2.1", Route: "PUT /v2/box/{id}/config/network-policy",
		Status: 200, Box: policy.BoxID(box), PolicyVersion: version, Change: trail.Change{RawMessage: json.RawMessage(what)},
	}
}

// TestBytesCountOnce: the bytes of a connection include its requests, also if their decision has another rule. A request without its
// connection counts the bytes of its body. A connection that opened and ended counts once, and one that a policy cut counts as refused,
// with its bytes.
func TestBytesCountOnce(t *testing.T) {
	t.Parallel()
	other := request("b", "api.example.com", 3, 700)
	other.Reason, other.Rule = "request_rule", "rule 1"
	open, end := request("b", "long.example.com", 3, 0), request("b", "long.example.com", 3, 50)
	open.Stage, end.Stage, open.Action, end.Action, open.Phase, end.Phase = policy.StageConn, policy.StageConn, audit.ActionSplice, audit.ActionSplice, audit.PhaseOpen, audit.PhaseEnd
	cut := end
	cut.Verdict, cut.Action, cut.Reason, cut.Name, cut.BytesOut = policy.Deny, audit.ActionRefuse, name.ReasonPolicyChanged, "cut.example.com", 30
	r := made(day, []audit.Event{
		request("b", "api.example.com", 3, 500), other, connection("b", "api.example.com", 3, 2000), open, end, cut, request("b", "bare.example.com", 3, 40),
	})
	b := r.Boxes[0]
	total := map[string]int64{}
	for _, f := range b.Egress {
		total[f.Host] += f.BytesOut
	}
	if total["api.example.com"] < 2000 || total["api.example.com"] > 2700 || total["long.example.com"] != 50 || total["bare.example.com"] != 40 || len(b.Refused) != 1 || b.Refused[0].BytesOut != 30 {
		t.Errorf("%v, refused %+v", total, b.Refused)
	}
	if b.BytesOut != 2000+50+30 || b.Allowed != 4 || b.Denied != 1 || b.Name != "b-name" {
		t.Errorf("%+v", b)
	}
	whole := made(day, []audit.Event{other, connection("b", "api.example.com", 3, 2000)})
	if e := whole.Boxes[0].Egress; len(e) != 1 || e[0].BytesOut != 2000 || e[0].Count != 1 || e[0].Connections != 1 || e[0].Rule != "rule 1" {
		t.Errorf("a request under another rule than its connection: %+v", e)
	}
}

// TestWhatIsLeftOut: decisions of other times, boxes and self-tests are not in a report, and look-ups only if no connection followed.
func TestWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	early, late, test := request("b", "early.example.com", 1, 1), request("b", "late.example.com", 1, 1), request("b", "test.example.com", 1, 1)
	early.Time, late.Time, test.SelfTest = day.Since.Add(-1), day.Until, true
	lookup, only := refusal("b", "refused.example.com", policy.StageDNS, 2), refusal("b", "only.example.com", policy.StageDNS, 3)
	query := Query{Since: day.Since, Until: day.Until, Box: "b"}
	r := made(query, []audit.Event{early, late, test, request("c", "other.example.com", 1, 1), lookup, refusal("b", "refused.example.com", policy.StageConn, 7), only})
	if len(r.Boxes) != 1 || r.Decisions.Read != 3 || len(r.Boxes[0].Egress) != 0 || r.Boxes[0].Denied != 12 {
		t.Fatalf("%+v", r)
	}
	got := r.Boxes[0].Refused
	if len(got) != 2 || got[0].Host != "refused.example.com" || got[0].Count != 7 || got[0].Lookup || got[1].Count != 3 || !got[1].Lookup || got[1].Port != 0 {
		t.Errorf("%+v", got)
	}
}

// TestAVersionLeadsToItsChange: a version that decided in the window leads to the entry that made it, also if that is older, and was
// written again by a full trail. A call that failed makes none.
func TestAVersionLeadsToItsChange(t *testing.T) {
	t.Parallel()
	old := change(7, "b", 3, `{"policy":{"version":3,"mode":["deny-all","custom"],"allowed_domains":{"added":["a.example","b.example"],"more":2}}}`)
	old.Time = day.Since.AddDate(0, -1, 0)
	text, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	kept := trail.Entry{Seq: 90, Time: noon, Kind: trail.Kept, Original: trail.Change{RawMessage: text}}
	failed := change(95, "b", 3, `{}`)
	failed.Status = 500
	other := change(8, "b", 2, `{"policy":{"version":2}}`)
	other.Time = old.Time
	r := made(day, []audit.Event{request("b", "a.example", 3, 1)}, kept, failed, other, change(97, "b", 4, `{"policy":{"version":4}}`))
	v := r.Boxes[0].Policies
	if len(v) != 2 || v[0].Version != 3 || v[0].Decisions != 1 || v[1].Version != 4 || v[1].Decisions != 0 || v[0].Change == nil || v[1].Change == nil {
		t.Fatalf("%+v", v)
	}
	want := []string{"policy allowed_domains: added a.example, b.example; and 2 more", "policy mode: custom, before: deny-all"}
	if c := v[0].Change; c.Seq != 7 || c.By != (Who{"carol", "key_1", "admin", "192.0.2.1"}) || !slices.Equal(c.What, want) {
		t.Errorf("%+v", c)
	}
}

// TestApprovalsAndCalls: an answer to a request of a box is in the report with its reasons and who gave it; calls that changed nothing are
// summed up, and a call without an answer does not count as refused.
func TestApprovalsAndCalls(t *testing.T) {
	t.Parallel()
	answer := change(5, "b", 2, `{"approval":{"id":"req_1","entry":"pypi.org:443","answer":"once","reason":"for this task","asked":"please \u202e"},"policy":{"version":2}}`)
	exec := func(seq uint64, kind trail.Kind, status int) trail.Entry {
		return trail.Entry{Seq: seq, Time: noon, Kind: kind, Call: seq - 1, Key: "ci", Route: "POST /v2/box/{id}/exec", Box: "b", Status: status}
	}
	refused := exec(20, trail.Refused, 403)
	refused.Suppressed = 4
	r := made(day, []audit.Event{request("b", "pypi.org", 2, 1)}, answer, exec(10, trail.Call, 0), exec(11, trail.Answer, 200), exec(12, trail.Call, 0), exec(13, trail.Answer, 200), exec(14, trail.Call, 0), refused)
	b := r.Boxes[0]
	if len(b.Approvals) != 1 {
		t.Fatalf("%+v", b)
	}
	if a := b.Approvals[0]; a.Entry != "pypi.org:443" || a.Answer != "once" || a.Reason != "for this task" || a.Asked != "please \u202e" || a.By.Key != "carol" || a.Version != 2 {
		t.Errorf("%+v", a)
	}
	got := map[int]uint64{}
	for _, c := range b.Calls {
		got[c.Status] = c.Count
	}
	if got[200] != 2 || got[0] != 1 || got[403] != 5 || len(b.Changes) != 1 {
		t.Errorf("%v %+v", got, b.Changes)
	}
}

// TestADeletedBoxIsFoundByItsName, by decisions and by the entry of its creation, and its report has no part of others.
func TestADeletedBoxIsFoundByItsName(t *testing.T) {
	t.Parallel()
	query := Query{Since: day.Since, Until: day.Until, Name: "old"}
	r := made(query, []audit.Event{request("c", "other.example.com", 1, 1)},
		change(3, "b", 1, `{"box":{"name":"old"},"policy":{"version":1}}`), change(5, "c", 1, `{"box":{"name":"new"}}`), change(7, "b", 2, `{"policy":{"version":2}}`),
		change(9, "", 0, `{"api_key_made":{"name":"x"}}`), change(11, "", 0, `{"headers":{"hosts":[]}}`))
	if len(r.Boxes) != 1 || r.Boxes[0].ID != "b" || len(r.Boxes[0].Policies) != 2 || len(r.Changes) != 1 {
		t.Errorf("%+v", r)
	}
}

// TestAReportIsBounded: a box that makes up destinations cannot make a report larger than its bound. The totals count them all, and the
// report has the number of rows that are left out.
func TestAReportIsBounded(t *testing.T) {
	t.Parallel()
	b := New(day)
	const n = MaxRows + 500
	for i := range n {
		e := refusal("flood", fmt.Sprintf("h%d.example.com", i), policy.StageConn, 1)
		b.Decision(&e)
	}
	r := b.Report(Facts{Now: noon})
	if x := r.Boxes[0]; len(x.Refused) > MaxRows || x.Denied != n || r.Decisions.OmittedRows < 500 || !strings.Contains(strings.Join(r.Notes, " "), "rows were left out") {
		t.Errorf("%d rows, %d denied, %+v %q", len(x.Refused), x.Denied, r.Decisions, r.Notes)
	}
}

// TestAttackFloodedReport: a box that makes up destinations displaces neither the traffic of others, nor changes, nor what left it later.
func TestAttackFloodedReport(t *testing.T) {
	t.Parallel()
	b := New(day)
	decide := func(e audit.Event) { b.Decision(&e) }
	for i := range 2 * MaxRows {
		decide(refusal("flood", fmt.Sprintf("h%d.example.com", i), policy.StageConn, 1))
	}
	decide(request("flood", "stolen.example.com", 1, 7))
	decide(request("quiet", "x.example.com", 1, 5, "key"))
	b.Entry(change(3, "quiet", 2, `{"policy":{"mode":["custom","allow-all"]}}`))
	r := b.Report(Facts{Now: noon})
	if len(r.Boxes) != 2 || len(r.Boxes[0].Egress) != 1 || len(r.Boxes[1].Egress) != 1 || len(r.Boxes[1].Secrets) != 1 || len(r.Boxes[1].Changes) != 1 || r.Decisions.OmittedRows == 0 {
		t.Errorf("%d boxes, %+v", len(r.Boxes), r.Decisions)
		for _, x := range r.Boxes {
			t.Errorf("%s: %d egress, %d secrets, %d changes", x.ID, len(x.Egress), len(x.Secrets), len(x.Changes))
		}
	}
}

// TestAttackLargeTextsInAReport: long descriptions of changes, long paths and long policies count against the bound of a report.
func TestAttackLargeTextsInAReport(t *testing.T) {
	t.Parallel()
	const most = 40 << 20
	var what []string
	for i := range 60 {
		what = append(what, fmt.Sprintf(`"m%d":%q`, i, strings.Repeat("x", 1000)))
	}
	query := day
	query.Secrets = []string{"key"}
	uses, b := New(query), New(day)
	for i := range 2000 {
		b.Entry(change(uint64(i), "a", uint64(i+1), "{"+strings.Join(what, ",")+"}"))
		for j := range maxPaths {
			e := request("a", "x.example.com", 1, 1, "key")
			e.Method, e.Path = fmt.Sprint("M", i), fmt.Sprintf("/%d/%s", j, strings.Repeat("x", 1000))
			uses.Decision(&e)
		}
	}
	r := b.Report(Facts{Now: noon, Text: func(policy.BoxID, uint64) json.RawMessage {
		return json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	}})
	size := 0
	for _, c := range r.Boxes[0].Changes {
		size += len(strings.Join(c.What, ""))
	}
	for _, v := range r.Boxes[0].Policies {
		if v.Text != nil {
			size += len(v.Text.RawMessage)
		}
		if v.Change != nil {
			size += len(strings.Join(v.Change.What, ""))
		}
	}
	for _, u := range uses.Uses(Facts{Now: noon}).Uses {
		size += len(strings.Join(u.Paths, ""))
	}
	if notes := strings.Join(r.Notes, " "); size > 2*most || !strings.Contains(notes, "rows were left out") || !strings.Contains(notes, "The texts of") {
		t.Errorf("%d bytes, %q", size, notes)
	}
}

// TestUsesOfASecret: the list has the uses of the secret and of secrets made with it, by method, also from events of an earlier version. It
// has the changes that name the secret, and none about another secret whose name begins alike.
func TestUsesOfASecret(t *testing.T) {
	t.Parallel()
	query := day
	query.Secrets = []string{"key", "derived"}
	b := New(query)
	login := request("c", "db.example.com", 1, 9)
	login.Secrets, login.Secret, login.Login = nil, "key", "postgres://app@db.example.com"
	for _, e := range []audit.Event{request("a", "x.example.com", 1, 5, "other", "key"), request("a", "x.example.com", 2, 5, "key"), request("b", "y.example.com", 1, 1, "derived"), request("b", "z.example.com", 1, 1, "key2"), login} {
		b.Decision(&e)
	}
	b.Entry(change(3, "a", 0, `{"headers":{"secrets":{"added":["x.example.com: key"]}}}`))
	b.Entry(change(5, "a", 0, `{"headers":{"secrets":{"added":["x.example.com: key2"]}}}`))
	b.Entry(change(7, "", 0, `{"secret_refreshed":"key"}`))
	u := b.Uses(Facts{Now: noon})
	got := map[string]uint64{}
	for _, x := range u.Uses {
		got[string(x.Box)+" "+x.Secret+" "+x.Host+" "+x.Method+" "+strings.Join(x.Paths, ",")+x.Login] = x.Count
	}
	want := map[string]uint64{"a key x.example.com GET /v1": 2, "b derived y.example.com GET /v1": 1, "c key db.example.com GET /v1postgres://app@db.example.com": 1}
	if fmt.Sprint(got) != fmt.Sprint(want) || len(u.Changes) != 2 || !slices.Equal(u.Derived, []string{"derived"}) {
		t.Errorf("%v, changes %+v", got, u.Changes)
	}
}

// FuzzDescribe: any change is described in few, short lines, without a panic.
func FuzzDescribe(f *testing.F) {
	for _, s := range []string{`{"policy":{"allowed_domains":{"added":["a"],"more":1},"mode":["a","b"]}}`, `{"a":{"added":3}}`, `{"a":[[],{"b":null}]}`, `[]`, `{"a":"\u202e"}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		lines := describe(json.RawMessage(s))
		if len(lines) > maxLines+1 {
			t.Errorf("%d lines", len(lines))
		}
		for _, l := range lines {
			if len(l) > maxLine+len("...") {
				t.Errorf("a line of %d bytes", len(l))
			}
		}
		approvalOf(trail.Entry{Change: trail.Change{RawMessage: json.RawMessage(s)}})
	})
}

// BenchmarkDecision is the cost of one decision in a report.
func BenchmarkDecision(b *testing.B) {
	builder, events := New(day), make([]audit.Event, 1000)
	for i := range events {
		events[i] = request("b", fmt.Sprintf("h%d.example.com", i), 1, 10, "key")
		events[i].Addr = netip.MustParseAddr("192.0.2.1")
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		builder.Decision(&events[i%len(events)])
	}
}
