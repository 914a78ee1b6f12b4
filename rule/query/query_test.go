package query_test

import (
	"net/http"
	"strings"
	"testing"

	"boxgate/policy/match"
	"boxgate/proxy/proxytest"
)

// TestQueryParameters: a parameter of a rule stands in the query once, however the box wrote it.
func TestQueryParameters(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"query": {"key": {"secret": "s", "prefix": "a ", "suffix": "&"}, "v.1": "x"}}}`)
		const set = "key=a%20from-source%26&v.1=x"
		for target, want := range map[string]string{
			"/":                   "/?" + set,
			"/a?":                 "/a?" + set,
			"/a%2Fb?q=%31&&r":     "/a%2Fb?q=%31&&r&" + set,
			"/?key=own&a=1&key=2": "/?a=1&" + set,
			"/?KEY=own&k%65y=own&%6b%65%79=own&%256bey=own&key[]=own&key[0]=own&+key=own&key%00x=own&v_1=own&v%2E1=own&a=key": "/?a=key&" + set,
			"/?a=1;key=own&b;key&keys=1&xkey=2&key2": "/?a=1&b&keys=1&xkey=2&key2&" + set,
		} {
			status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+target, nil, nil)
			got, _ := up.Take()
			if status != 200 || got == nil || got.RequestURI != want {
				t.Errorf("%s: %d %s: %v", target, status, text, got)
			}
		}
		for _, e := range l.Events.Wait(t, 6) {
			if strings.ContainsAny(e.Path, "?=") || strings.Join(e.Headers, " ") != "?key ?v.1" {
				t.Errorf("event %+v", e)
			}
		}
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"query": {"key": {"secret": "broken"}}}}`)
		if status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/", nil, nil); status != 502 || !strings.Contains(text, "secret_unavailable") {
			t.Errorf("%d %s", status, text)
		}
		if got, _ := up.Take(); got != nil {
			t.Errorf("%v", got)
		}
	})
}

// TestQueryIsJudgedAgain: a parameter for which a rule allowed the request, and that is then removed as a spelling of one that is
// set, does not count; what the client gave for that one itself does.
func TestQueryIsJudgedAgain(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		spec := proxytest.AllowAll
		for _, tt := range []struct{ match, target, want string }{
			{`"v_1": {"exact": "x"}`, "/?v_1=x", ""},
			{`"v_1": {"exact": "x"}`, "/?v_1=x&a=b", ""},
			{`"v.1": {"exact": "x"}`, "/?v.1=x&a=b", "/?a=b&v.1=canary-set"},
			{`"v.1": {"exact": "x"}`, "/?v%2E1=x&v_1=y", ""},
			{`"a": {"exact": "b"}`, "/?a=b&v_1=x", "/?a=b&v.1=canary-set"},
			{`"a": {"prefix": "b"}`, "/?a=b;v.1=x", "/?a=b&v.1=canary-set"},
		} {
			l.Rules(spec, `{"`+proxytest.HostPort(port)+`": [{"match": {"query": {`+tt.match+`}}, "query": {"v.1": "canary-set"}, "scrub": false}]}`)
			status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+tt.target, nil, nil)
			got, _ := up.Take()
			switch {
			case tt.want != "" && (status != 200 || got == nil || got.RequestURI != tt.want):
				t.Errorf("%s, %s: %d %s: %v", tt.match, tt.target, status, text, got)
			case tt.want == "" && (got != nil || status != 403 || !strings.Contains(text, "ambiguous_request")):
				t.Errorf("%s, %s: %d %s: %v", tt.match, tt.target, status, text, got)
			}
		}
		// A rule of the policy, too.
		spec.Rules = []match.RequestRule{
			{Hosts: []string{proxytest.HostPort(port)}, Match: &match.Match{Query: match.Pairs{Pairs: []match.Pair{{Key: *match.Exact("v_1")}}}}, Action: "allow"},
			{Hosts: []string{proxytest.HostPort(port)}, Action: "deny"},
		}
		l.Rules(spec, `{"`+proxytest.HostPort(port)+`": {"query": {"v.1": "canary-set"}, "scrub": false}}`)
		status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/?v_1=x", nil, nil)
		if got, _ := up.Take(); got != nil || status != 403 || !strings.Contains(text, "request_rule") {
			t.Errorf("a rule of the policy: %d %s %v", status, text, got)
		}
	})
}
