package solo

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestWhatIsSaidOfARefusal: SSH is treated as TCP whether the destination has a known name or not, and UDP is not
// supported.
func TestWhatIsSaidOfARefusal(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]audit.Event{
		`refused github.com:22 (deny_all): to allow it: --allow github.com:22`:                                                            {Name: "github.com", Port: 22, Protocol: policy.TCP},
		`refused an unknown destination:22 (deny_all): no name is known for it; to allow it, add its name with the port: --allow HOST:22`: {Port: 22, Protocol: policy.TCP},
		`refused github.com:123/udp (deny_all): gateway run supports only TCP and DNS`:                                                    {Name: "github.com", Port: 123, Protocol: policy.UDP},
		`refused 192.0.2.1:22 (deny_all): to allow it: --allow 192.0.2.1 (no name is known for it`:                                        {Addr: netip.MustParseAddr("192.0.2.1"), Port: 22, Protocol: policy.TCP},
	} {
		var out bytes.Buffer
		e.Stage, e.Verdict, e.Reason = policy.StageConn, policy.Deny, name.ReasonDenyAll
		r := newRecord(Options{Errout: &out})
		r.record(e)
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %s\ngot %s", want, &out)
		}
		if r.Summarize(); !strings.Contains(out.String(), "(deny_all, 1 time)") {
			t.Error(&out)
		}
	}
}

// TestNamesThatDoNotExist: an allowed name that does not exist is reported once, but not those of a resolver's search list.
func TestNamesThatDoNotExist(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := newRecord(Options{Errout: &out})
	e := audit.Event{Stage: policy.StageDNS, Verdict: policy.Allow, RCode: audit.NXDomain, Reason: name.ReasonAllowedDomain, Name: "pypy.example", Method: "A"}
	r.record(e)
	e.Method = "AAAA"
	r.record(e)
	e.Reason, e.Name = name.ReasonAllowAll, "pypi.org.corp.example"
	r.record(e)
	r.Summarize()
	const want = "gateway: could not reach pypy.example (upstream_unresolved): the policy allows the name, but it does not exist: check its spelling\n" +
		"gateway: reached nothing\ngateway: could not reach pypy.example (upstream_unresolved, 2 times)\ngateway: refused nothing\n"
	if out.String() != want {
		t.Errorf("got %s", &out)
	}
}

// TestReportAsJSON: the summary is one line of JSON with counts, reasons and the entries that would allow the destinations.
func TestReportAsJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := newRecord(Options{Errout: &out, Quiet: true})
	deny := audit.Event{Stage: policy.StageConn, Verdict: policy.Deny, Reason: name.ReasonDenyAll, Name: "a.example", Port: 22, Protocol: policy.TCP}
	r.record(deny)
	r.record(deny)
	r.record(audit.Event{Stage: policy.StageConn, Verdict: policy.Allow, Reason: name.ReasonAllowedDomain, Name: "b.example", Port: 443, Protocol: policy.TCP})
	r.WriteJSON(7, false)
	var got struct {
		ExitStatus       int `json:"exit_status"`
		Reached, Refused []struct {
			Host, Reason, Allow string
			Port, Count         int
		}
		Policy policy.Spec
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || strings.Count(out.String(), "\n") != 1 {
		t.Fatal(err, &out)
	}
	if got.ExitStatus != 7 || len(got.Reached) != 1 || got.Reached[0].Host != "b.example" || len(got.Refused) != 1 || got.Refused[0].Allow != "a.example:22" ||
		got.Refused[0].Count != 2 || got.Refused[0].Reason != "deny_all" || len(got.Policy.AllowedDomains) != 2 {
		t.Error(&out)
	}
}
