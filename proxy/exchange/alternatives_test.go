package exchange_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

// TestAlternatives: what is sent depends on the request as it is forwarded, whatever the HTTP versions; requests that
// servers read in different ways are refused, and so are those for which an alternative says so.
func TestAlternatives(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": [
			{"match": {"path": {"prefix": "/admin"}}, "deny": true},
			{"match": {"headers": {"X-Role": {"exact": "root"}}}, "headers": {"X-Key": "root"}, "placeholders": {"KEY": "swapped"}},
			{"match": {"query": {"team": {"exact": "blue"}}}, "headers": {"X-Key": {"secret": "s"}}, "remove": ["X-Debug"]},
			{"match": {"query": {"team": {"exact": "red"}}}, "headers": {"X-Key": {"secret": "broken"}}}]}`)
		for _, tt := range []struct {
			target string
			header http.Header
			key    string // that the server receives, or the reason why it receives nothing
		}{
			{"/x?team=blue", http.Header{"X-Key": {"mine"}, "X-Debug": {"1"}, "X_debug": {"1"}}, "from-source"},
			{"/x?team=green", http.Header{"X-Debug": {"1"}}, ""},
			{"/x", http.Header{"X-Role": {"root"}, "X-Debug": {"1"}}, "root"},
			{"/x", http.Header{"X-Role": {"root"}, "X-Other": {proxytest.TokenFor("KEY")}}, "root"},
			{"/x", http.Header{"X-Other": {proxytest.TokenFor("KEY")}}, "placeholder_leak"},
			{"/x?team=red", nil, "secret_unavailable"},
			{"/admin/x?team=blue", nil, "header_rule"},
			{"/Admin", nil, "header_rule"},
			{"/x//y", nil, "ambiguous_path"},
			{"/x?team=blue&team=green", nil, "ambiguous_request"},
			{"/x?team=green;team=blue", nil, "ambiguous_request"},
			{"/x?team=bl%2575e", nil, "ambiguous_request"},
			{"/x", http.Header{"X-Role": {"root", "user"}}, "ambiguous_request"},
			{"/x", http.Header{"X-Role": {"user, root"}}, "ambiguous_request"},
			{"/x", http.Header{"X_role": {"root"}}, "ambiguous_request"},
		} {
			_, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+tt.target, tt.header)
			got, _ := up.Take()
			if got == nil {
				if tt.key == "" || !strings.Contains(text, `"`+tt.key+`"`) {
					t.Errorf("%s %v: %s, want %q", tt.target, tt.header, text, tt.key)
				}
				continue
			}
			if key := got.Header.Get("X-Key"); key != tt.key {
				t.Errorf("%s %v: the server received %q, want %q", tt.target, tt.header, key, tt.key)
			}
			if debug := len(got.Header["X-Debug"]) + len(got.Header["X_debug"]); (tt.key == "from-source") != (debug == 0) && tt.header["X-Debug"] != nil {
				t.Errorf("%s: the server received X-Debug %d times", tt.target, debug)
			}
			if tt.header["X-Other"] != nil && got.Header.Get("X-Other") != "swapped" {
				t.Errorf("%s: the placeholder became %q", tt.target, got.Header.Get("X-Other"))
			}
		}
		denied := l.Events.Wait(t, 7)[6]
		if denied.Verdict != policy.Deny || denied.Reason != name.ReasonHeaderRule || denied.Rule != proxytest.HostPort(port)+", alternative 1" || denied.Status != 403 {
			t.Errorf("event %+v", denied)
		}
	})
}

// TestScrubbingIsTheHosts: what a server was sent with one alternative it cannot show in the response to a request of another, or
// of none.
func TestScrubbingIsTheHosts(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		_, port := l.HTTPSServer(http2, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "stored: canary-literal-value.")
		})
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": [
			{"match": {"methods": ["POST"]}, "headers": {"X-Key": "canary-literal-value"}, "scrub": true},
			{"match": {"methods": ["GET"], "query": {"team": {"exact": "blue"}}}, "headers": {"X-Other": "value-of-blue"}}]}`)
		client := l.HTTPClient(port, http2)
		for _, query := range []string{"?team=blue", ""} {
			_, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/x"+query, nil)
			if strings.Contains(text, "canary-literal-value") || !strings.HasPrefix(text, "stored: ") {
				t.Errorf("HTTP/2: %t, %q: %s", http2, query, text)
			}
		}
	}
}
