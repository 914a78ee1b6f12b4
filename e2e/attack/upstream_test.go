package attack

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"boxgate/audit"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
	"boxgate/policy"
	"boxgate/policy/name"
)

// poison is an answer that a hostile server smuggles, to be taken for the answer to another request.
const poison = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"

// brokenAnswers are responses that are ambiguous to parsers, or never end. want is the status that the client must see;
// 0 means that its connection is cut within the response.
var brokenAnswers = map[string]struct {
	text string
	want int
}{
	"CL and TE":              {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + poison, 502},
	"two CLs":                {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 2\r\n\r\n" + poison, 502},
	"CL with a sign":         {"HTTP/1.1 200 OK\r\nContent-Length: +0\r\n\r\n" + poison, 502},
	"unknown TE":             {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + poison, 502},
	"bare LF":                {"HTTP/1.1 200 OK\nContent-Length: 0\n\n" + poison, 502},
	"obs-fold":               {"HTTP/1.1 200 OK\r\nX: y\r\n Content-Length: 0\r\n\r\n" + poison, 502},
	"space before the colon": {"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n" + poison, 502},
	"control byte":           {"HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 0\r\n\r\n" + poison, 502},
	"no status":              {"HTTP/1.1 OK\r\n\r\n" + poison, 502},
	"HTTP/2":                 {"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n" + poison, 502},
	"no HTTP":                {"SSH-2.0-OpenSSH\r\n" + poison, 502},
	"101 that nobody asked":  {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + poison, 502},
	"1xx without end":        {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 1000) + poison, 502},
	"a head of 100 KB":       {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 100<<10) + "\r\n\r\n" + poison, 502},
	"an answer too many":     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + poison, 200},
	"content behind 204":     {"HTTP/1.1 204 No Content\r\n\r\n" + poison, 204},
	"bad chunk":              {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nxyz\r\n" + poison, 0},
	"chunk line without end": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 10<<10) + "\r\n" + poison, 0},
	"trailers of 100 KB":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + strings.Repeat("y", 100<<10) + "\r\n\r\n" + poison, 0},
}

// TestAttackByTheServer: a hostile server answers in ways that could leak into the answers of other requests.
func TestAttackByTheServer(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	in := secretWorld(t, change)
	origin := start(in.World)
	secure := netip.AddrPortFrom(in.Resolve(harness.OriginName, "ip4"), 443)
	for label, broken := range brokenAnswers {
		t.Run(label, func(t *testing.T) {
			in := in.On(t)
			for _, way := range []string{"h1", "h2", "plain"} {
				origin.Answers(broken.text)
				since := time.Now()
				status := 0
				switch way {
				case "h2":
					f := in.Frames(harness.OriginName)
					f.Send(1, true, harness.Head(harness.OriginName, harness.Field{":path", "/broken"})...)
					if _, err := fmt.Sscan(f.Outcome(1), &status); err != nil {
						status = 0 // "reset"
					}
				default:
					c := in.Dial(secure)
					if way == "h1" {
						c = in.TLS(c, harness.OriginName)
					} else {
						c = in.Dial(netip.AddrPortFrom(secure.Addr(), 80))
					}
					answer, _ := harness.SendAndReadAll(c, "GET /broken HTTP/1.1\r\nHost: "+harness.OriginName+"\r\nConnection: close\r\n\r\n")
					if strings.Contains(answer, "poison") {
						t.Errorf("%s: %q", way, answer)
					}
					status = lastStatus(answer)
				}
				if status != broken.want {
					t.Errorf("%s: the client saw %d", way, status)
				}
				if broken.want == 502 {
					in.Event(in.Box, func(e audit.Event) bool {
						return !e.Time.Before(since) && e.Path == "/broken" && e.Reason == name.ReasonUpstreamHTTP && e.Status == 502
					})
				}
				// The next request gets its own answer, on any connection.
				origin.Answers("")
				c := in.TLS(in.Dial(secure), harness.OriginName)
				if res, body := harness.Exchange(t, c, bufio.NewReader(c), "GET /next HTTP/1.1\r\nHost: "+harness.OriginName+"\r\n\r\n"); res.StatusCode != 200 || body != "ok" {
					t.Errorf("%s: the next answer is %d %q", way, res.StatusCode, body)
				}
			}
		})
	}
	in.NoInternalErrors()
}

// repairedAnswers are responses without content that a rule with lenient repairs.
var repairedAnswers = map[string]string{
	"CL and TE":              "HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"chunked twice":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"bare LF":                "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
	"obs-fold":               "HTTP/1.1 200 OK\r\nX: y\r\n Content-Length: 99\r\nContent-Length: 0\r\n\r\n",
	"space before the colon": "HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
	"name with a space":      "HTTP/1.1 200 OK\r\nContent Length: 99\r\nContent-Length: 0\r\n\r\n",
	"130 fields":             "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 129) + "Content-Length: 0\r\n\r\n",
}

// TestAttackByTheServerOfALenientRule: a server whose malformed responses are repaired cannot answer the next request with another response
// behind one, and the box's own requests stay strict.
func TestAttackByTheServerOfALenientRule(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	w := harness.NewWorld(t, change)
	origin := start(w)
	rule := map[string]any{"headers": map[string]string{"Authorization": harness.Canary}, "lenient": true}
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom(harness.OriginName), "attach_headers": map[string]any{harness.OriginName: rule},
	}))
	secure := netip.AddrPortFrom(in.Resolve(harness.OriginName, "ip4"), 443)
	for label, text := range repairedAnswers {
		t.Run(label, func(t *testing.T) {
			in := in.On(t)
			c := in.TLS(in.Dial(secure), harness.OriginName)
			r := bufio.NewReader(c)
			origin.Answers(text + poison)
			if res, body := harness.Exchange(t, c, r, "GET /broken HTTP/1.1\r\nHost: "+harness.OriginName+"\r\n\r\n"); res.StatusCode != 200 || body != "" {
				t.Errorf("the malformed answer is %d %q", res.StatusCode, body)
			}
			origin.Answers("")
			for range 2 {
				if res, body := harness.Exchange(t, c, r, "GET /next HTTP/1.1\r\nHost: "+harness.OriginName+"\r\n\r\n"); res.StatusCode != 200 || body != "ok" {
					t.Errorf("the next answer is %d %q", res.StatusCode, body)
				}
			}
		})
	}
	answer, _ := harness.SendAndReadAll(in.TLS(in.Dial(secure), harness.OriginName), strings.ReplaceAll(malformed["bare LF ends the lines"], "HOST", harness.OriginName))
	if status := lastStatus(answer); status != 400 {
		t.Errorf("a malformed request is answered with %q", answer)
	}
	in.NoInternalErrors()
}

// lastStatus returns the status of the final response in a client's input, or 0 if it is incomplete.
func lastStatus(answer string) int {
	for r := bufio.NewReader(strings.NewReader(answer)); ; {
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return 0
		}
		if res.StatusCode >= 200 {
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				return 0
			}
			return res.StatusCode
		}
	}
}

// TestAttackPipelining sends several requests in one write: each is judged separately, and answered in order.
func TestAttackPipelining(t *testing.T) {
	t.Parallel()
	in := secretWorld(t, nil)
	c := in.TLS(in.DialHost("api.example.com", 443), "api.example.com")
	r := bufio.NewReader(c)
	var text string
	for i, host := range []string{"api.example.com", "evil.example.net", "api.example.com", "www.example.com", "api.example.com"} {
		text += fmt.Sprintf("GET /pipelined-%d HTTP/1.1\r\nHost: %s\r\n\r\n", i, host)
	}
	for i, want := range []int{200, 421, 200, 421, 200} {
		res, body := harness.Exchange(t, c, r, text)
		text = ""
		if res.StatusCode != want || want == 200 && !strings.Contains(body, fmt.Sprintf("/pipelined-%d", i)) {
			t.Errorf("answer %d: %d %s", i, res.StatusCode, body)
		}
	}
	in.NothingReached("evil.example.net")
	in.NothingReached("www.example.com")
}

// TestAttackSecretOfAnotherBox: several boxes use the same host, two with a secret each. Neither gets the other's
// secret, although connections to the host are kept. No connection carries requests of two boxes: a server may bind the
// authentication to the connection, and a box may leave half an answer behind.
func TestAttackSecretOfAnotherBox(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	const host = "api.example.com"
	var boxes []*harness.Intruder
	for i := range 3 {
		body := map[string]any{"network_policy": map[string]any{
			"mode": "custom", "allowed_domains": []string{host}, "rules": []any{map[string]any{"hosts": []string{host}, "action": "allow"}}}}
		if i < 2 { // the third has no secret
			body["attach_headers"] = map[string]any{host: map[string]string{"X-Key": fmt.Sprintf("%s-%d", harness.Canary, i)}}
		}
		boxes = append(boxes, w.Intrude(w.Create(body)))
	}
	for round := range 4 {
		for i, in := range boxes {
			path := fmt.Sprintf("/box-%d", i)
			if i < 2 {
				f := in.Frames(host)
				f.Send(1, true, harness.Head(host, harness.Field{":path", path})...)
				f.Outcome(1)
			}
			c := harness.TLSUnchecked(in.DialHost(host, 443), host)
			harness.Exchange(t, c, bufio.NewReader(c), "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
			want := map[int]string{0: harness.Canary + "-0", 1: harness.Canary + "-1"}[i]
			for _, r := range w.Net.Received(host, testnet.Path(path)) {
				if r.Header.Get("X-Key") != want {
					t.Errorf("round %d: box %d sent %+v", round, i, r)
				}
			}
		}
	}
	paths, kept := map[netip.AddrPort]string{}, false
	for _, r := range w.Net.Received(host, testnet.Of(testnet.Request)) {
		before, again := paths[r.Remote]
		kept = kept || again
		if again && before != r.Target {
			t.Errorf("the connection from %v carries requests of two boxes, for %s and %s", r.Remote, before, r.Target)
		}
		paths[r.Remote] = r.Target
	}
	if !kept {
		t.Error("no connection was used twice: the test shows nothing")
	}
}

// TestAttackDeniedHostWithPages: with denial pages instead of alerts, the name is refused as well.
func TestAttackDeniedHostWithPages(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Proxy.Deny = "page" })
	box := w.Create(map[string]any{"network_policy": harness.Custom("www.example.com")})
	out, code := w.Sh(box, "curl -sS https://evil.example.net/x -w ' %{http_code}'")
	if code != 0 || !strings.HasSuffix(out, " 403") || !strings.Contains(out, "not_allowed") {
		t.Errorf("curl: %d %s", code, out)
	}
	in := w.Intrude(box)
	answer, _ := harness.SendAndReadAll(in.DialHost("evil.example.net", 443), hello{0x303, []uint16{0x304}, nil, false}.String())
	if answer != harness.AlertDenied {
		t.Errorf("no SNI: %q", answer)
	}
	w.NothingReached("evil.example.net")
	if e := w.Event(box, func(e audit.Event) bool { return e.Name == "evil.example.net" && e.Stage == policy.StageConn }); e.Verdict != policy.Deny ||
		e.Reason != name.ReasonNotAllowed || e.Status != 403 {
		t.Errorf("decision %+v", e)
	}
}
