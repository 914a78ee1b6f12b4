package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/policy"
)

// frames is an HTTP/2 client that sends whatever it is told.
type frames struct {
	t    *testing.T
	conn net.Conn
	*http2.Framer
	block   bytes.Buffer
	encoder *hpack.Encoder
	fields  map[uint32]map[string]string // of the responses
	bodies  map[uint32]string

	wasReset map[uint32]int // how often each stream was
}

// frames speaks HTTP/2 to a host over an intercepted connection.
func (in *intruder) frames(host string) *frames {
	in.t.Helper()
	c := in.tls(in.dialHost(host, 443), host, "h2")
	if p := c.ConnectionState().NegotiatedProtocol; p != "h2" {
		in.t.Fatalf("negotiated %q", p)
	}
	f := &frames{t: in.t, conn: c, Framer: http2.NewFramer(c, c), fields: map[uint32]map[string]string{}, bodies: map[uint32]string{},
		wasReset: map[uint32]int{}}
	f.encoder = hpack.NewEncoder(&f.block)
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		in.t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		in.t.Fatal(err)
	}
	return f
}

// field is one header field, pseudo-headers included.
type field struct{ name, value string }

func hpackField(f field) hpack.HeaderField { return hpack.HeaderField{Name: f.name, Value: f.value} }

// head is a request head for a host, with fields in the place of those of the same name or behind them.
func head(host string, fields ...field) []field {
	out := []field{{":method", "GET"}, {":scheme", "https"}, {":authority", host}, {":path", "/"}}
	for _, f := range fields {
		replaced := false
		for i := range out {
			if out[i].name == f.name && strings.HasPrefix(f.name, ":") {
				out[i], replaced = f, true
			}
		}
		if !replaced {
			out = append(out, f)
		}
	}
	return out
}

// send writes HEADERS, in as many frames as they need.
func (f *frames) send(stream uint32, end bool, fields ...field) {
	f.block.Reset()
	for _, h := range fields {
		_ = f.encoder.WriteField(hpackField(h)) // into a buffer
	}
	block := f.block.Bytes()
	n := min(len(block), 16<<10)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block)})
	for block = block[n:]; err == nil && len(block) > 0; block = block[n:] {
		n = min(len(block), 16<<10)
		err = f.WriteContinuation(stream, n == len(block), block[:n])
	}
	if err != nil {
		f.fields[stream] = map[string]string{"error": err.Error()}
	}
}

// outcome reads until the stream has ended and says how: a status, "reset", or "closed" for the whole connection.
func (f *frames) outcome(stream uint32) string {
	_ = f.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck() // a connection that is gone says so when it is read
			}
		case *http2.MetaHeadersFrame:
			if f.fields[frame.StreamID] == nil {
				f.fields[frame.StreamID] = map[string]string{}
			}
			for _, h := range frame.Fields {
				f.fields[frame.StreamID][h.Name] = h.Value
			}
		case *http2.DataFrame:
			f.bodies[frame.StreamID] += string(frame.Data())
		case *http2.RSTStreamFrame:
			f.wasReset[frame.StreamID]++
			if frame.StreamID == stream && (f.fields[stream] == nil || frame.ErrCode != http2.ErrCodeNo) {
				return "reset"
			}
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				return "closed"
			}
		}
		if h := frame.Header(); h.StreamID == stream && h.Flags.Has(http2.FlagDataEndStream) {
			return f.fields[stream][":status"]
		}
	}
}

// TestAttackSmugglingFromHTTP2 sends what would become a second request, or another one, when it is written as HTTP/1.1.
func TestAttackSmugglingFromHTTP2(t *testing.T) {
	t.Parallel()
	change, start := withOrigin(t)
	in := secretWorld(t, change)
	origin := start(in.world)
	split := "x\r\n\r\n" + smuggled
	for name, fields := range map[string][]field{
		"CR LF in a value":                head(originName, field{"x", split}),
		"LF in a value":                   head(originName, field{"x", "a\nHost: evil.example.net"}),
		"CR in a value":                   head(originName, field{"x", "a\rHost: evil.example.net"}),
		"NUL in a value":                  head(originName, field{"x", "a\x00b"}),
		"CR LF in a name":                 head(originName, field{"x: y\r\nhost", "evil.example.net"}),
		"a colon in a name":               head(originName, field{"transfer-encoding: chunked", "x"}),
		"a space in a name":               head(originName, field{"transfer-encoding ", "chunked"}),
		"capital letters in a name":       head(originName, field{"Transfer-Encoding", "chunked"}),
		"an empty name":                   head(originName, field{"", "x"}),
		"CR LF in the path":               head(originName, field{":path", "/ HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"}),
		"a space in the path":             head(originName, field{":path", "/ HTTP/1.1"}),
		"a tab in the path":               head(originName, field{":path", "/\tx"}),
		"an empty path":                   head(originName, field{":path", ""}),
		"a path without a slash":          head(originName, field{":path", "evil.example.net/"}),
		"an absolute path":                head(originName, field{":path", "http://evil.example.net/"}),
		"a star for GET":                  head(originName, field{":path", "*"}),
		"a fragment in the path":          head(originName, field{":path", "/#x"}),
		"CR LF in the method":             head(originName, field{":method", "GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\nGET"}),
		"a space in the method":           head(originName, field{":method", "GET /x"}),
		"an empty method":                 head(originName, field{":method", ""}),
		"TRACE":                           head(originName, field{":method", "TRACE"}),
		"trace":                           head(originName, field{":method", "trace"}),
		"CONNECT to another host":         {{":method", "CONNECT"}, {":authority", "evil.example.net:443"}},
		"CONNECT to its own host":         {{":method", "CONNECT"}, {":authority", originName + ":443"}},
		"CONNECT for another protocol":    head(originName, field{":method", "CONNECT"}, field{":protocol", "connect-udp"}),
		"WebSocket to another host":       head("evil.example.net", field{":method", "CONNECT"}, field{":protocol", "websocket"}),
		"CR LF in the protocol":           head(originName, field{":method", "CONNECT"}, field{":protocol", "websocket\r\nX: y"}),
		"a protocol without CONNECT":      head(originName, field{":protocol", "websocket"}),
		"CR LF in the authority":          head(originName, field{":authority", originName + "\r\nX: y"}),
		"a user in the authority":         head(originName, field{":authority", originName + "@evil.example.net"}),
		"an own user in the authority":    head(originName, field{":authority", "evil.example.net@" + originName}),
		"another port in the authority":   head(originName, field{":authority", originName + ":8443"}),
		"another authority":               head(originName, field{":authority", "evil.example.net"}),
		"another allowed authority":       head(originName, field{":authority", "api.example.com"}),
		"an empty authority":              head(originName, field{":authority", ""}),
		"another scheme":                  head(originName, field{":scheme", "http"}),
		"CR LF in the scheme":             head(originName, field{":scheme", "https://evil.example.net/\r\nX: y"}),
		"transfer-encoding":               head(originName, field{":method", "POST"}, field{"transfer-encoding", "chunked"}),
		"transfer_encoding":               head(originName, field{":method", "POST"}, field{"transfer_encoding", "chunked"}),
		"content_length":                  head(originName, field{":method", "POST"}, field{"content_length", "44"}),
		"connection":                      head(originName, field{"connection", "authorization"}),
		"keep-alive":                      head(originName, field{"keep-alive", "timeout=5"}),
		"proxy-connection":                head(originName, field{"proxy-connection", "close"}),
		"upgrade":                         head(originName, field{"upgrade", "h2c"}),
		"te of a coding":                  head(originName, field{"te", "gzip"}),
		"content-length beyond the body":  head(originName, field{":method", "POST"}, field{"content-length", "44"}),
		"two content-lengths":             head(originName, field{":method", "POST"}, field{"content-length", "0"}, field{"content-length", "44"}),
		"content-length with a sign":      head(originName, field{":method", "POST"}, field{"content-length", "+0"}),
		"two paths":                       append(head(originName), field{":path", "/smuggled"}),
		"two authorities":                 append(head(originName), field{":authority", "evil.example.net"}),
		"a pseudo-header behind fields":   append(head(originName)[:3], field{"x", "y"}, field{":path", "/"}),
		"a pseudo-header of a response":   append(head(originName), field{":status", "200"}),
		"no path":                         head(originName)[:3],
		"no scheme":                       append(head(originName)[:1], head(originName)[2:]...),
		"no authority, another host":      append(append(head(originName)[:2:2], head(originName)[3]), field{"host", "evil.example.net"}),
		"300 fields":                      append(head(originName), manyFields(300)...),
		"fields of 100 KB":                head(originName, field{"x", strings.Repeat("a", 100<<10)}),
		"an expectation behind a newline": head(originName, field{"expect", "100-continue\r\nX: y"}),
	} {
		t.Run(name, func(t *testing.T) {
			f := in.on(t).frames(originName)
			f.send(1, true, fields...)
			if got := f.outcome(1); got != "reset" && got != "closed" && got != "400" && got != "405" && got != "421" && got != "431" {
				t.Errorf("outcome %s %v", got, f.fields[1])
			}
			if got := origin.received(); got != "" {
				t.Errorf("the origin received %q", got)
			}
		})
	}
	t.Run("host beside authority", func(t *testing.T) {
		f := in.on(t).frames(originName)
		f.send(1, true, head(originName, field{"host", "evil.example.net"})...)
		if got := f.outcome(1); got == "200" && (strings.Contains(origin.received(), "evil")) {
			t.Error("the other host arrived")
		}
	})
	for _, body := range []struct{ is, data string }{{"longer", "0123456789" + smuggled}, {"shorter", "012"}} {
		t.Run("a body "+body.is+" than content-length", func(t *testing.T) {
			f := in.on(t).frames(originName)
			f.send(1, false, head(originName, field{":method", "POST"}, field{"content-length", "10"})...)
			if err := f.WriteData(1, true, []byte(body.data)); err != nil {
				t.Fatal(err)
			}
			if got := f.outcome(1); got != "reset" && got != "closed" && got[0] != '4' && got[0] != '5' {
				// The naive origin answers the head alone; what counts is what it was sent.
				t.Logf("outcome %s", got)
			}
			if got := origin.received(); strings.Contains(got, "smuggled") {
				t.Errorf("the origin received %q", got)
			}
		})
	}
	in.nothingReached("evil.example.net")
}

func manyFields(n int) (out []field) {
	for i := range n {
		out = append(out, field{fmt.Sprintf("x-%d", i), "y"})
	}
	return out
}

// TestAttackAuthorityOnLaterRequests names another host once a connection is judged, in both protocols.
func TestAttackAuthorityOnLaterRequests(t *testing.T) {
	t.Parallel()
	in := secretWorld(t, nil)
	others := []string{"evil.example.net", "www.example.com", "api.example.com:8443", "api.example.com.evil.example.net", "evil-api.example.com",
		in.v4("api.example.com").String(), "169.254.169.254", "localhost", "[::1]:443", "api.example.com:0", "api.example.com:443:443"}
	same := []string{"api.example.com", "API.Example.COM", "api.example.com.", "api.example.com:443"}
	for _, first := range []bool{true, false} {
		for _, host := range others {
			t.Run(fmt.Sprintf("h1 %s first %v", host, first), func(t *testing.T) {
				in := in.on(t)
				c := in.tls(in.dialHost("api.example.com", 443), "api.example.com")
				r := bufio.NewReader(c)
				if !first {
					exchange(t, c, r, "GET /good HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
				}
				since := time.Now()
				res, body := exchange(t, c, r, "GET /echo HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
				if res.StatusCode != 421 && res.StatusCode != 400 || strings.Contains(body, canary) {
					t.Errorf("answer %d %s", res.StatusCode, body)
				}
				reason := policy.ReasonAuthorityMismatch
				if res.StatusCode == 400 {
					reason = policy.ReasonBadRequest
				}
				in.denied(since, policy.StageHTTP, reason)
			})
			t.Run(fmt.Sprintf("h2 %s first %v", host, first), func(t *testing.T) {
				f := in.on(t).frames("api.example.com")
				stream := uint32(1)
				if !first {
					f.send(stream, true, head("api.example.com", field{":path", "/good"})...)
					if got := f.outcome(stream); got != "200" {
						t.Fatalf("the good request: %s", got)
					}
					stream = 3
				}
				f.send(stream, true, head(host, field{":path", "/echo"})...)
				if got := f.outcome(stream); got != "421" && got != "400" && got != "reset" || strings.Contains(f.bodies[stream], canary) {
					t.Errorf("outcome %s %s", got, f.bodies[stream])
				}
			})
		}
	}
	if seen := in.requests("api.example.com", "/echo"); len(seen) != 0 {
		t.Errorf("the server received %+v", seen)
	}
	in.nothingReached("evil.example.net")
	in.nothingReached("www.example.com")
	for _, host := range same {
		c := in.tls(in.dialHost("api.example.com", 443), "api.example.com")
		res, _ := exchange(t, c, bufio.NewReader(c), "GET /same HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		f := in.frames("api.example.com")
		f.send(1, true, head(host, field{":path", "/same"})...)
		if got := f.outcome(1); res.StatusCode != 200 || got != "200" {
			t.Errorf("%s, the host itself: %d, %s", host, res.StatusCode, got)
		}
	}
	for _, r := range in.requests("api.example.com", "/same") {
		if r.Header.Get("Authorization") != canary {
			t.Errorf("without the secret: %+v", r)
		}
	}
}

// TestAttackPlainHTTPNamesAnotherHostLater decides each request of a plain connection anew.
func TestAttackPlainHTTPNamesAnotherHostLater(t *testing.T) {
	t.Parallel()
	in := secretWorld(t, nil)
	for _, network := range []string{"ip4", "ip6"} {
		c := in.dial(netip.AddrPortFrom(in.resolve("www.example.com", network), 80))
		r := bufio.NewReader(c)
		for _, step := range []struct {
			request string
			status  int
			reason  policy.Reason
		}{
			{"GET /one HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 200, ""},
			{"GET /two HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", 403, policy.ReasonNotAllowed},
			{"GET /three HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", 421, policy.ReasonAuthorityMismatch},
			{"GET /four HTTP/1.1\r\nHost: www.example.com:8080\r\n\r\n", 421, policy.ReasonAuthorityMismatch},
			{"GET http://evil.example.net/five HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", 403, policy.ReasonNotAllowed},
			{"GET /six HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 200, ""},
			{"GET http://www.example.com/seven HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 200, ""},
			{"CONNECT " + in.v4("evil.example.net").String() + ":443 HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 405, policy.ReasonMethod},
			{"GET http://evil.example.net/eight HTTP/1.1\r\nHost: www.example.com\r\n\r\n", 400, policy.ReasonBadRequest},
		} {
			since := time.Now()
			if res, body := exchange(t, c, r, step.request); res.StatusCode != step.status || !strings.Contains(body, string(step.reason)) {
				t.Errorf("%.40q: %d %s", step.request, res.StatusCode, body)
			}
			if step.reason != "" {
				in.denied(since, policy.StageHTTP, step.reason)
			}
		}
	}
	if one, six := in.requests("www.example.com", "/one"), in.requests("api.example.com", "/six"); len(one) != 2 || len(six) != 2 {
		t.Errorf("the allowed requests arrived %d and %d times", len(one), len(six))
	} else if six[0].Header.Get("Authorization") != "" {
		t.Error("the secret went out over plain HTTP")
	}
	in.nothingReached("evil.example.net")
	in.nothingReached("169.254.169.254")
}

// TestAttackTrailersOverHTTP2 repeats the injected header behind the body of a stream, to an origin of each protocol.
func TestAttackTrailersOverHTTP2(t *testing.T) {
	t.Parallel()
	change, start := withOrigin(t)
	w := newWorld(t, change)
	origin := start(w)
	keys := map[string]string{"X-Api-Key": canary}
	in := w.intrude(w.create(map[string]any{
		"network_policy": custom("api.example.com", originName),
		"attach_headers": map[string]any{"api.example.com": keys, originName: keys},
	}))
	for _, host := range []string{"api.example.com", originName} {
		for _, name := range []string{"x-api-key", "x_api_key", "x-api_key"} {
			f := in.frames(host)
			f.send(1, false, head(host, field{":method", "POST"}, field{":path", "/echo"}, field{"trailer", name + ", x-kept"})...)
			if err := f.WriteData(1, false, []byte("body")); err != nil {
				t.Fatal(err)
			}
			f.send(1, true, field{name, "mine"}, field{"x-kept", "yes"})
			if got := f.outcome(1); got != "200" {
				t.Errorf("%s of %s: %s", name, host, got)
			}
		}
	}
	seen := in.requests("api.example.com", "/echo")
	if len(seen) != 3 {
		t.Errorf("over HTTP/2 the server received %d requests", len(seen))
	}
	for _, r := range seen {
		if r.Header.Get("X-Api-Key") != canary || len(r.Trailer) != 1 || r.Trailer.Get("X-Kept") != "yes" {
			t.Errorf("over HTTP/2 the server received %+v", r)
		}
	}
	got := ""
	for limit := time.Now().Add(3 * time.Second); strings.Count(got, "yes\r\n\r\n") < 3 && time.Now().Before(limit); {
		got += origin.received()
	}
	if strings.Count(got, "X-Api-Key: "+canary+"\r\n") != 3 || strings.Contains(got, "mine") || strings.Count(got, "yes\r\n\r\n") != 3 {
		t.Errorf("over HTTP/1.1 the origin received %q", got)
	}
}
