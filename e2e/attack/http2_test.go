package attack

import (
	"bufio"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestAttackSmugglingFromHTTP2 sends requests that would become a second or another request when written as HTTP/1.1.
func TestAttackSmugglingFromHTTP2(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	in := secretWorld(t, change)
	origin := start(in.World)
	split := "x\r\n\r\n" + smuggled
	for name, fields := range map[string][]harness.Field{
		"CR LF in a value":                harness.Head(harness.OriginName, harness.Field{"x", split}),
		"LF in a value":                   harness.Head(harness.OriginName, harness.Field{"x", "a\nHost: evil.example.net"}),
		"CR in a value":                   harness.Head(harness.OriginName, harness.Field{"x", "a\rHost: evil.example.net"}),
		"NUL in a value":                  harness.Head(harness.OriginName, harness.Field{"x", "a\x00b"}),
		"CR LF in a name":                 harness.Head(harness.OriginName, harness.Field{"x: y\r\nhost", "evil.example.net"}),
		"a colon in a name":               harness.Head(harness.OriginName, harness.Field{"transfer-encoding: chunked", "x"}),
		"a space in a name":               harness.Head(harness.OriginName, harness.Field{"transfer-encoding ", "chunked"}),
		"capital letters in a name":       harness.Head(harness.OriginName, harness.Field{"Transfer-Encoding", "chunked"}),
		"an empty name":                   harness.Head(harness.OriginName, harness.Field{"", "x"}),
		"CR LF in the path":               harness.Head(harness.OriginName, harness.Field{":path", "/ HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"}),
		"a space in the path":             harness.Head(harness.OriginName, harness.Field{":path", "/ HTTP/1.1"}),
		"a tab in the path":               harness.Head(harness.OriginName, harness.Field{":path", "/\tx"}),
		"an empty path":                   harness.Head(harness.OriginName, harness.Field{":path", ""}),
		"a path without a slash":          harness.Head(harness.OriginName, harness.Field{":path", "evil.example.net/"}),
		"an absolute path":                harness.Head(harness.OriginName, harness.Field{":path", "http://evil.example.net/"}),
		"a star for GET":                  harness.Head(harness.OriginName, harness.Field{":path", "*"}),
		"a fragment in the path":          harness.Head(harness.OriginName, harness.Field{":path", "/#x"}),
		"CR LF in the method":             harness.Head(harness.OriginName, harness.Field{":method", "GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\nGET"}),
		"a space in the method":           harness.Head(harness.OriginName, harness.Field{":method", "GET /x"}),
		"an empty method":                 harness.Head(harness.OriginName, harness.Field{":method", ""}),
		"TRACE":                           harness.Head(harness.OriginName, harness.Field{":method", "TRACE"}),
		"trace":                           harness.Head(harness.OriginName, harness.Field{":method", "trace"}),
		"CONNECT to another host":         {{":method", "CONNECT"}, {":authority", "evil.example.net:443"}},
		"CONNECT to its own host":         {{":method", "CONNECT"}, {":authority", harness.OriginName + ":443"}},
		"CONNECT for another protocol":    harness.Head(harness.OriginName, harness.Field{":method", "CONNECT"}, harness.Field{":protocol", "connect-udp"}),
		"WebSocket to another host":       harness.Head("evil.example.net", harness.Field{":method", "CONNECT"}, harness.Field{":protocol", "websocket"}),
		"CR LF in the protocol":           harness.Head(harness.OriginName, harness.Field{":method", "CONNECT"}, harness.Field{":protocol", "websocket\r\nX: y"}),
		"a protocol without CONNECT":      harness.Head(harness.OriginName, harness.Field{":protocol", "websocket"}),
		"CR LF in the authority":          harness.Head(harness.OriginName, harness.Field{":authority", harness.OriginName + "\r\nX: y"}),
		"a user in the authority":         harness.Head(harness.OriginName, harness.Field{":authority", harness.OriginName + "@evil.example.net"}),
		"an own user in the authority":    harness.Head(harness.OriginName, harness.Field{":authority", "evil.example.net@" + harness.OriginName}),
		"another port in the authority":   harness.Head(harness.OriginName, harness.Field{":authority", harness.OriginName + ":8443"}),
		"another authority":               harness.Head(harness.OriginName, harness.Field{":authority", "evil.example.net"}),
		"another allowed authority":       harness.Head(harness.OriginName, harness.Field{":authority", "api.example.com"}),
		"an empty authority":              harness.Head(harness.OriginName, harness.Field{":authority", ""}),
		"another scheme":                  harness.Head(harness.OriginName, harness.Field{":scheme", "http"}),
		"CR LF in the scheme":             harness.Head(harness.OriginName, harness.Field{":scheme", "https://evil.example.net/\r\nX: y"}),
		"transfer-encoding":               harness.Head(harness.OriginName, harness.Field{":method", "POST"}, harness.Field{"transfer-encoding", "chunked"}),
		"transfer_encoding":               harness.Head(harness.OriginName, harness.Field{":method", "POST"}, harness.Field{"transfer_encoding", "chunked"}),
		"content_length":                  harness.Head(harness.OriginName, harness.Field{":method", "POST"}, harness.Field{"content_length", "44"}),
		"connection":                      harness.Head(harness.OriginName, harness.Field{"connection", "authorization"}),
		"keep-alive":                      harness.Head(harness.OriginName, harness.Field{"keep-alive", "timeout=5"}),
		"proxy-connection":                harness.Head(harness.OriginName, harness.Field{"proxy-connection", "close"}),
		"upgrade":                         harness.Head(harness.OriginName, harness.Field{"upgrade", "h2c"}),
		"te of a coding":                  harness.Head(harness.OriginName, harness.Field{"te", "gzip"}),
		"content-length beyond the body":  harness.Head(harness.OriginName, harness.Field{":method", "POST"}, harness.Field{"content-length", "44"}),
		"two content-lengths":             harness.Head(harness.OriginName, harness.Field{":method", "POST"}, harness.Field{"content-length", "0"}, harness.Field{"content-length", "44"}),
		"content-length with a sign":      harness.Head(harness.OriginName, harness.Field{":method", "POST"}, harness.Field{"content-length", "+0"}),
		"two paths":                       append(harness.Head(harness.OriginName), harness.Field{":path", "/smuggled"}),
		"two authorities":                 append(harness.Head(harness.OriginName), harness.Field{":authority", "evil.example.net"}),
		"a pseudo-header behind fields":   append(harness.Head(harness.OriginName)[:3], harness.Field{"x", "y"}, harness.Field{":path", "/"}),
		"a pseudo-header of a response":   append(harness.Head(harness.OriginName), harness.Field{":status", "200"}),
		"no path":                         harness.Head(harness.OriginName)[:3],
		"no scheme":                       append(harness.Head(harness.OriginName)[:1], harness.Head(harness.OriginName)[2:]...),
		"no authority, another host":      append(append(harness.Head(harness.OriginName)[:2:2], harness.Head(harness.OriginName)[3]), harness.Field{"host", "evil.example.net"}),
		"300 fields":                      append(harness.Head(harness.OriginName), manyFields(300)...),
		"fields of 100 KB":                harness.Head(harness.OriginName, harness.Field{"x", strings.Repeat("a", 100<<10)}),
		"an expectation behind a newline": harness.Head(harness.OriginName, harness.Field{"expect", "100-continue\r\nX: y"}),
	} {
		t.Run(name, func(t *testing.T) {
			f := in.On(t).Frames(harness.OriginName)
			f.Send(1, true, fields...)
			if got := f.Outcome(1); got != "reset" && got != "closed" && got != "400" && got != "405" && got != "421" && got != "431" {
				t.Errorf("outcome %s %v", got, f.Fields[1])
			}
			if got := origin.Received(); got != "" {
				t.Errorf("the origin received %q", got)
			}
		})
	}
	t.Run("host beside authority", func(t *testing.T) {
		f := in.On(t).Frames(harness.OriginName)
		f.Send(1, true, harness.Head(harness.OriginName, harness.Field{"host", "evil.example.net"})...)
		if got := f.Outcome(1); got == "200" && (strings.Contains(origin.Received(), "evil")) {
			t.Error("the other host arrived")
		}
	})
	for _, body := range []struct{ is, data string }{{"longer", "0123456789" + smuggled}, {"shorter", "012"}} {
		t.Run("a body "+body.is+" than content-length", func(t *testing.T) {
			f := in.On(t).Frames(harness.OriginName)
			f.Send(1, false, harness.Head(harness.OriginName, harness.Field{":method", "POST"}, harness.Field{"content-length", "10"})...)
			if err := f.WriteData(1, true, []byte(body.data)); err != nil {
				t.Fatal(err)
			}
			if got := f.Outcome(1); got != "reset" && got != "closed" && got[0] != '4' && got[0] != '5' {
				// The naive origin answers the head alone. Only the bytes it received count.
				t.Logf("outcome %s", got)
			}
			if got := origin.Received(); strings.Contains(got, "smuggled") {
				t.Errorf("the origin received %q", got)
			}
		})
	}
	in.NothingReached("evil.example.net")
}

func manyFields(n int) (out []harness.Field) {
	for i := range n {
		out = append(out, harness.Field{fmt.Sprintf("x-%d", i), "y"})
	}
	return out
}

// TestAttackAuthorityOnLaterRequests names another host on a connection that was already judged, in both protocols.
func TestAttackAuthorityOnLaterRequests(t *testing.T) {
	t.Parallel()
	in := secretWorld(t, nil)
	others := []string{"evil.example.net", "www.example.com", "api.example.com:8443", "api.example.com.evil.example.net", "evil-api.example.com",
		in.V4("api.example.com").String(), "169.254.169.254", "localhost", "[::1]:443", "api.example.com:0", "api.example.com:443:443"}
	same := []string{"api.example.com", "API.Example.COM", "api.example.com.", "api.example.com:443"}
	for _, first := range []bool{true, false} {
		for _, host := range others {
			t.Run(fmt.Sprintf("h1 %s first %v", host, first), func(t *testing.T) {
				in := in.On(t)
				c := in.TLS(in.DialHost("api.example.com", 443), "api.example.com")
				r := bufio.NewReader(c)
				if !first {
					harness.Exchange(t, c, r, "GET /good HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
				}
				since := time.Now()
				res, body := harness.Exchange(t, c, r, "GET /echo HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
				if res.StatusCode != 421 && res.StatusCode != 400 || strings.Contains(body, harness.Canary) {
					t.Errorf("answer %d %s", res.StatusCode, body)
				}
				reason := name.ReasonAuthorityMismatch
				if res.StatusCode == 400 {
					reason = name.ReasonBadRequest
				}
				in.Denied(since, policy.StageHTTP, reason)
			})
			t.Run(fmt.Sprintf("h2 %s first %v", host, first), func(t *testing.T) {
				f := in.On(t).Frames("api.example.com")
				stream := uint32(1)
				if !first {
					f.Send(stream, true, harness.Head("api.example.com", harness.Field{":path", "/good"})...)
					if got := f.Outcome(stream); got != "200" {
						t.Fatalf("the good request: %s", got)
					}
					stream = 3
				}
				f.Send(stream, true, harness.Head(host, harness.Field{":path", "/echo"})...)
				if got := f.Outcome(stream); got != "421" && got != "400" && got != "reset" || strings.Contains(f.Bodies[stream], harness.Canary) {
					t.Errorf("outcome %s %s", got, f.Bodies[stream])
				}
			})
		}
	}
	if seen := in.Requests("api.example.com", "/echo"); len(seen) != 0 {
		t.Errorf("the server received %+v", seen)
	}
	in.NothingReached("evil.example.net")
	in.NothingReached("www.example.com")
	for _, host := range same {
		c := in.TLS(in.DialHost("api.example.com", 443), "api.example.com")
		res, _ := harness.Exchange(t, c, bufio.NewReader(c), "GET /same HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		f := in.Frames("api.example.com")
		f.Send(1, true, harness.Head(host, harness.Field{":path", "/same"})...)
		if got := f.Outcome(1); res.StatusCode != 200 || got != "200" {
			t.Errorf("%s, the host itself: %d, %s", host, res.StatusCode, got)
		}
	}
	for _, r := range in.Requests("api.example.com", "/same") {
		if r.Header.Get("Authorization") != harness.Canary {
			t.Errorf("without the secret: %+v", r)
		}
	}
}

// TestAttackPlainHTTPNamesAnotherHostLater: each request of a plain connection is decided separately.
func TestAttackPlainHTTPNamesAnotherHostLater(t *testing.T) {
	t.Parallel()
	in := secretWorld(t, nil)
	for _, network := range []string{"ip4", "ip6"} {
		c := in.Dial(netip.AddrPortFrom(in.Resolve("www.example.com", network), 80))
		r := bufio.NewReader(c)
		for _, step := range []struct {
			request string
			status  int
			reason  name.Reason
		}{
			{"GET /one HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 200, ""},
			{"GET /two HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", 403, name.ReasonNotAllowed},
			{"GET /three HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", 421, name.ReasonAuthorityMismatch},
			{"GET /four HTTP/1.1\r\nHost: www.example.com:8080\r\n\r\n", 421, name.ReasonAuthorityMismatch},
			{"GET http://evil.example.net/five HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", 403, name.ReasonNotAllowed},
			{"GET /six HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 200, ""},
			{"GET http://www.example.com/seven HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 200, ""},
			{"CONNECT " + in.V4("evil.example.net").String() + ":443 HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 405, name.ReasonMethod},
			{"GET http://evil.example.net/eight HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 400, name.ReasonBadRequest},
		} {
			since := time.Now()
			if res, body := harness.Exchange(t, c, r, step.request); res.StatusCode != step.status || !strings.Contains(body, string(step.reason)) {
				t.Errorf("%.40q: %d %s", step.request, res.StatusCode, body)
			}
			if step.reason != "" {
				in.Denied(since, policy.StageHTTP, step.reason)
			}
		}
	}
	if one, six := in.Requests("www.example.com", "/one"), in.Requests("api.example.com", "/six"); len(one) != 2 || len(six) != 2 {
		t.Errorf("the allowed requests arrived %d and %d times", len(one), len(six))
	} else if six[0].Header.Get("Authorization") != "" {
		t.Error("the secret went out over plain HTTP")
	}
	in.NothingReached("evil.example.net")
	in.NothingReached("169.254.169.254")
}

// TestAttackTrailersOverHTTP2 repeats the injected header in the trailers of a stream, to an origin of each protocol.
func TestAttackTrailersOverHTTP2(t *testing.T) {
	t.Parallel()
	change, start := harness.WithOrigin(t)
	w := harness.NewWorld(t, change)
	origin := start(w)
	keys := map[string]string{"X-Api-Key": harness.Canary}
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", harness.OriginName),
		"attach_headers": map[string]any{"api.example.com": keys, harness.OriginName: keys},
	}))
	for _, host := range []string{"api.example.com", harness.OriginName} {
		for _, name := range []string{"x-api-key", "x_api_key", "x-api_key"} {
			f := in.Frames(host)
			f.Send(1, false, harness.Head(host, harness.Field{":method", "POST"}, harness.Field{":path", "/echo"}, harness.Field{"trailer", name + ", x-kept"})...)
			if err := f.WriteData(1, false, []byte("body")); err != nil {
				t.Fatal(err)
			}
			f.Send(1, true, harness.Field{name, "mine"}, harness.Field{"x-kept", "yes"})
			if got := f.Outcome(1); got != "200" {
				t.Errorf("%s of %s: %s", name, host, got)
			}
		}
	}
	seen := in.Requests("api.example.com", "/echo")
	if len(seen) != 3 {
		t.Errorf("over HTTP/2 the server received %d requests", len(seen))
	}
	for _, r := range seen {
		if r.Header.Get("X-Api-Key") != harness.Canary || len(r.Trailer) != 1 || r.Trailer.Get("X-Kept") != "yes" {
			t.Errorf("over HTTP/2 the server received %+v", r)
		}
	}
	got := ""
	for limit := time.Now().Add(harness.Patience); strings.Count(got, "yes\r\n\r\n") < 3 && time.Now().Before(limit); {
		got += origin.Received()
	}
	if strings.Count(got, "X-Api-Key: "+harness.Canary+"\r\n") != 3 || strings.Contains(got, "mine") || strings.Count(got, "yes\r\n\r\n") != 3 {
		t.Errorf("over HTTP/1.1 the origin received %q", got)
	}
}

// TestAttackFramesThatCarryNothing sends requests in many frames without content. Each costs the sender nine bytes and
// is valid by itself. A few are accepted, because clients may send them; more end the connection.
func TestAttackFramesThatCarryNothing(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com"),
		"attach_headers": map[string]any{"api.example.com": map[string]string{"X-Key": harness.Canary}},
	}))
	emptyData := func(f *harness.Frames, n int, padding []byte) {
		f.Send(1, false, harness.Head("api.example.com", harness.Field{":method", "POST"}, harness.Field{":path", "/echo"})...)
		for range n {
			if f.WriteDataPadded(1, false, nil, padding) != nil {
				return
			}
		}
		_ = f.WriteData(1, true, []byte("x"))
	}
	for name, send := range map[string]func(f *harness.Frames, n int){
		"CONTINUATION": func(f *harness.Frames, n int) {
			f.Block.Reset()
			for _, h := range harness.Head("api.example.com") {
				_ = f.Encoder.WriteField(h.HPACK())
			}
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndStream: true})
			for i := 0; i < n && err == nil; i++ {
				err = f.WriteContinuation(1, false, nil)
			}
			_ = f.WriteContinuation(1, true, f.Block.Bytes())
		},
		"DATA":            func(f *harness.Frames, n int) { emptyData(f, n, nil) },
		"DATA of padding": func(f *harness.Frames, n int) { emptyData(f, n, make([]byte, 200)) },
	} {
		t.Run(name, func(t *testing.T) {
			in := in.On(t)
			f := in.Frames("api.example.com")
			if send(f, 10); f.Outcome(1) != "200" {
				t.Errorf("ten of them: %v", f.Fields[1])
			}
			f = in.Frames("api.example.com")
			if send(f, 5000); f.Outcome(1) != "closed" {
				t.Errorf("thousands of them were taken for a request: %v", f.Fields[1])
			}
		})
	}
	in.Event(in.Box, func(e audit.Event) bool {
		return e.Reason == name.ReasonBadRequest && e.Error == "the connection is ended with ENHANCE_YOUR_CALM"
	})
}
