package lenient_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/proxy/proxytest"
)

// malformed are responses to the first request, each with another response behind it, and the recorded repair.
var malformed = map[string]struct{ response, repair string }{
	"bare LF":            {"HTTP/1.1 200 OK\nX-Row: a\nContent-Length: 4\n\nreal", "bare LF"},
	"bare LF in chunks":  {"HTTP/1.1 200 OK\r\nX-Row: a\r\nTransfer-Encoding: chunked\r\n\r\n4\nreal\n0\n\n", "bare LF"},
	"folded":             {"HTTP/1.1 200 OK\r\nX-Other: a\r\n b\r\nX-Row: a\r\nContent-Length: 4\r\n\r\nreal", "folded field"},
	"blank before colon": {"HTTP/1.1 200 OK\r\nX-Row : a\r\nContent-Length : 4\r\n\r\nreal", "white space before a colon"},
	"odd name":           {"HTTP/1.1 200 OK\r\nX-Row: a\r\nContent Length: 400\r\nContent-Length: 4\r\n\r\nreal", "field without a valid name dropped"},
	"chunked twice":      {"HTTP/1.1 200 OK\r\nX-Row: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nreal\r\n0\r\n\r\n", "chunked twice"},
	"length and chunked": {"HTTP/1.1 200 OK\r\nX-Row: a\r\nContent-Length: 400\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nreal\r\n0\r\n\r\n", "Content-Length beside Transfer-Encoding"},
	"old chunked":        {"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nX-Row: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nreal\r\n0\r\n\r\n", "chunked in HTTP/1.0"},
	"130 fields":         {"HTTP/1.1 200 OK\r\nX-Row: a\r\n" + strings.Repeat("X-Many: a\r\n", 128) + "Content-Length: 4\r\n\r\nreal", "more than 128 fields"},
	"well-formed":        {"HTTP/1.1 200 OK\r\nX-Row: a\r\nContent-Length: 4\r\n\r\nreal", ""},
}

// TestAttackSmuggledResponse: a response behind a malformed one is never taken for that to the next request, in any version of HTTP, and
// the next request has a new connection. Without the rule, malformed responses are refused.
func TestAttackSmuggledResponse(t *testing.T) {
	t.Parallel()
	for what, m := range malformed {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprint(what, ", HTTP/2 ", h2), func(t *testing.T) {
				t.Parallel()
				l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
				var conns atomic.Int32
				port := l.RawServerALPN("http/1.1", func(c net.Conn, in *bufio.Reader) {
					conns.Add(1)
					for {
						r, err := http.ReadRequest(in)
						if err != nil {
							return
						}
						text := "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext"
						if r.URL.Path == "/first" {
							text = m.response + "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
						}
						_, _ = io.WriteString(c, text)
					}
				})
				entry := func(option string) string {
					return `{"` + proxytest.HostPort(port) + `": {"headers": {"X-Key": "literal"}` + option + `}}`
				}
				l.Rules(proxytest.AllowAll, entry(""))
				client, url := l.HTTPClientLater(port, h2), "https://"+proxytest.HostPort(port)
				if got := passes(client, url+"/first"); got != (m.repair == "") {
					t.Errorf("without the rule, the response passes: %v", got)
				}
				l.Rules(proxytest.AllowAll, entry(`, "lenient": true`))
				client = l.HTTPClientLater(port, h2)
				conns.Store(0)
				for range 3 {
					res, text := proxytest.Get(t, client, url+"/first", nil)
					if res.StatusCode != 200 || text != "real" || res.Header.Get("X-Row") != "a" {
						t.Fatalf("the first response: %d %q %v", res.StatusCode, text, res.Header)
					}
					if res, text := proxytest.Get(t, client, url+"/second", nil); res.StatusCode != 200 || text != "next" {
						t.Fatalf("the second response: %d %q", res.StatusCode, text)
					}
				}
				if got := conns.Load(); got != 6 {
					t.Errorf("%d connections for six requests", got)
				}
				l.Want("the event", func(e audit.Event) bool {
					want := ""
					if m.repair != "" {
						want = "the response was malformed and repaired: " + m.repair
					}
					return e.Stage == policy.StageHTTP && e.Path == "/first" && e.Verdict == policy.Allow && e.Error == want
				})
			})
		}
	}
}

// passes reports whether a whole response of the server arrives.
func passes(client *http.Client, url string) bool {
	res, err := client.Get(url)
	if err != nil {
		return false
	}
	defer res.Body.Close()
	_, err = io.ReadAll(res.Body)
	return err == nil && res.StatusCode == 200
}

// TestServersOfLenientRulesSpeakHTTP1: an HTTP/2 connection would carry several responses.
func TestServersOfLenientRulesSpeakHTTP1(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
		for option, want := range map[string]string{"true": "HTTP/1.1", "false": map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"}[h2]} {
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": "literal"}, "lenient": `+option+`}}`)
			if _, text := proxytest.Get(t, l.HTTPClientLater(port, h2), "https://"+proxytest.HostPort(port)+"/", nil); text != want {
				t.Errorf("lenient %s: the server speaks %s, want %s", option, text, want)
			}
		}
	}
}

// TestLenientRules: the member is true or false, and cannot be combined with a rule that sends requests elsewhere.
func TestLenientRules(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		`{"lenient": true}`:  "",
		`{"lenient": false}`: "",
		`{"lenient": 1}`:     "/a.test/lenient: is a number",
		`{"lenient": true, "forward_url": "https://p.test"}`: "forward_url sends the requests to another one",
		`{"lenient": true, "deny": true}`:                    "refuses the requests",
	} {
		rules, err := policy.ParseHeaderRules([]byte(`{"a.test": `+entry+`}`), nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", entry, err, want)
		}
		if err == nil && rules[0].OnConnections().Lenient != strings.Contains(entry, "true") {
			t.Errorf("%s: %+v", entry, rules[0].OnConnections())
		}
	}
}
