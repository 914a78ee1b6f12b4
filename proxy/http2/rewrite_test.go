package http2_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestBodiesThatAreReadFirst: a body that a rule changes or signs is read before it is sent, up to a limit, whatever length the
// client declares. The server gets the whole body with its trailers.
func TestBodiesThatAreReadFirst(t *testing.T) {
	t.Parallel()
	token := proxytest.TokenFor("OTHER")
	for _, h2 := range []bool{true, false} {
		l, up := proxytest.New(t, proxytest.AllowAll, proxytest.Patient), &proxytest.Recorder{}
		_, port := l.HTTPSServer(h2, up.Serve)
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"OTHER": "the-value"}, "places": ["header", "json"],
			"sign": {"hmac": {"key": "k", "header": "X-Signature", "template": "{body}"}}}}`)
		client, url := l.HTTPClient(port, true), "https://"+proxytest.HostPort(port)+"/"
		kind := http.Header{"Content-Type": {"application/json"}}
		for what, body := range map[string]io.Reader{
			"of known length":   strings.NewReader(`["` + token + `"]`),
			"of unknown length": proxytest.Unsized(`["` + token + `"]`),
			"with a trailer":    &proxytest.Trailed{Reader: strings.NewReader(`["` + token + `"]`)},
		} {
			status, text := proxytest.Send(t, client, "POST", url, kind, body)
			got, sent := up.Take()
			if status != 200 || got == nil || sent != `["the-value"]` {
				t.Errorf("h2 %v, %s: %d %s; the server got %q", h2, what, status, text, sent)
				continue
			}
			mac := hmac.New(sha256.New, []byte("k"))
			_, _ = io.WriteString(mac, sent)
			if got.Header.Get("X-Signature") != hex.EncodeToString(mac.Sum(nil)) {
				t.Errorf("h2 %v, %s: signed as %q", h2, what, got.Header.Get("X-Signature"))
			}
			if end := got.Trailer.Get("X-End"); (end == "yes") != (what == "with a trailer") {
				t.Errorf("h2 %v, %s: %q behind the body", h2, what, end)
			}
		}
		for what, body := range map[string]io.Reader{"length": strings.NewReader(strings.Repeat("x", 2<<20)), "stream": proxytest.Unsized(strings.Repeat("x", 2<<20))} {
			status, text := proxytest.Send(t, client, "POST", url, nil, body)
			if got, _ := up.Take(); got != nil || status != 413 || !strings.Contains(text, string(name.ReasonUnsignable)) {
				t.Errorf("h2 %v, beyond the bound (%s): %d %s, the server got %v", h2, what, status, text, got != nil)
			}
		}
	}
}

// TestPlaceholderInATrailer: the head and the body may have gone by then; the request must not become whole.
func TestPlaceholderInATrailer(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the-value"}}}`)
		for i, size := range []int{10, 1 << 20} {
			req, _ := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/", struct{ io.Reader }{strings.NewReader(strings.Repeat("x", size))})
			req.Trailer = http.Header{"X-Sum": {proxytest.TokenFor("KEY")}}
			res, err := client.Do(req)
			if err == nil {
				if res.StatusCode != 403 {
					t.Errorf("%d bytes: %d", size, res.StatusCode)
				}
				_ = res.Body.Close()
			}
			if e := l.Events.Wait(t, i+1)[i]; e.Verdict != policy.Deny || e.Reason != name.ReasonPlaceholderLeak || len(e.Headers) != 0 {
				t.Errorf("%d bytes: event %+v", size, e)
			}
			if got, _ := up.Take(); got != nil && len(got.Trailer) != 0 && got.Trailer.Get("X-Sum") != "" {
				t.Errorf("%d bytes: the upstream received the trailer %v", size, got.Trailer)
			}
		}
	})
}

// TestPlaceholderInABody: a token in a body, however the body is divided, does not reach the server whole, and is recorded.
func TestPlaceholderInABody(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the-value"}}}`)
		token := proxytest.TokenFor("KEY")
		filler := strings.Repeat("bxgph_x", 1<<15)
		n := 0
		for what, body := range map[string]io.Reader{
			"at once":    strings.NewReader(`{"key": "` + token + `"}`),
			"in chunks":  struct{ io.Reader }{strings.NewReader("a=b&key=" + token)},
			"in bytes":   iotest.OneByteReader(strings.NewReader("a=b&key=" + token + "&c=d")),
			"far behind": struct{ io.Reader }{strings.NewReader(filler + token + filler)},
			"its length": strings.NewReader(filler + token),
		} {
			req, _ := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/", body)
			if res, err := client.Do(req); err == nil {
				if res.StatusCode != 403 {
					t.Errorf("%s: %d", what, res.StatusCode)
				}
				_ = res.Body.Close()
			}
			if n++; true {
				if e := l.Events.Wait(t, n)[n-1]; e.Verdict != policy.Deny || e.Reason != name.ReasonPlaceholderLeak {
					t.Errorf("%s: event %+v", what, e)
				}
			}
			if _, got := up.Take(); strings.Contains(got, token) {
				t.Errorf("%s: the upstream received the token", what)
			}
		}
		res, _ := client.Post("https://"+proxytest.HostPort(port)+"/", "text/plain", strings.NewReader(filler+token[:len(token)-1]+"."))
		if res == nil || res.StatusCode != 200 {
			t.Errorf("a body that holds no whole token: %v", res)
		}
	})
}

// TestReplacedFieldsAreNeverIndexed reads the frames an upstream receives.
func TestReplacedFieldsAreNeverIndexed(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	fields := make(chan []hpack.HeaderField, 10)
	port := frameServer(l, fields)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the-value"}}}`)
	client := l.HTTPClient(port, true)
	for range 3 {
		proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{"X-Key": {proxytest.TokenFor("KEY")}, "Authorization": {proxytest.Basic("u", proxytest.TokenFor("KEY"))}})
		seen := 0
		for _, f := range <-fields {
			if f.Name != "x-key" && f.Name != "authorization" {
				continue
			}
			if seen++; !f.Sensitive || f.Value != "the-value" && f.Value != proxytest.Basic("u", "the-value") {
				t.Errorf("%s: %q, never indexed %v", f.Name, f.Value, f.Sensitive)
			}
		}
		if seen != 2 {
			t.Errorf("%d fields", seen)
		}
	}
}

// frameServer is an upstream of HTTP/2 that hands on the fields of each request as they were encoded.
func frameServer(r *proxytest.Rig, fields chan<- []hpack.HeaderField) uint16 {
	return r.RawServerALPN("h2", func(c net.Conn, r *bufio.Reader) {
		if _, err := io.ReadFull(r, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		framer := http2.NewFramer(c, r)
		_ = framer.WriteSettings()
		dec := hpack.NewDecoder(4096, nil)
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					_ = framer.WriteSettingsAck()
				}
			case *http2.HeadersFrame:
				list, err := dec.DecodeFull(f.HeaderBlockFragment())
				if err != nil {
					return
				}
				fields <- list
				var out bytes.Buffer
				_ = hpack.NewEncoder(&out).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
				_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: f.StreamID, BlockFragment: out.Bytes(), EndStream: true, EndHeaders: true})
			}
		}
	})
}

// TestSignedWebSocket: a WebSocket is a request without a body, also over HTTP/2 (RFC 8441), where the stream stays open: it is
// signed immediately, and its messages are searched.
func TestSignedWebSocket(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed("from-source")} })
	_, port := l.HTTPSServer(false, proxytest.EchoWebSocket)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"scrub": false, "placeholders": {"KEY": {"secret": "s"}}, `+proxytest.Everywhere+`, "sign": {"hmac": {
		"key": "k", "header": "Authorization", "template": "{method} {path} {body_sha256}"}}}}`)
	mac := hmac.New(sha256.New, []byte("k"))
	_, _ = io.WriteString(mac, "GET / "+proxytest.HashOf(""))
	signature := hex.EncodeToString(mac.Sum(nil))
	for _, kind := range []string{"", "application/json", "gzip"} {
		//lint:ignore SA1019 net/http's own client refuses the field :protocol
		client, err := (&http2.Transport{}).NewClientConn(l.DialPair(proxytest.API, port, true, "h2"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		pr, pw := io.Pipe()
		defer pw.Close()
		req, _ := http.NewRequestWithContext(ctx, "CONNECT", "https://"+proxytest.HostPort(port)+"/", pr)
		req.Header[":protocol"] = []string{"websocket"}
		switch kind {
		case "gzip":
			req.Header.Set("Content-Encoding", kind)
		case "":
		default:
			req.Header.Set("Content-Type", kind)
		}
		res, err := client.RoundTrip(req)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%q: %v %v", kind, res, err)
		}
		frame := append([]byte{0x81, 0x80 | byte(len(proxytest.TokenFor("KEY"))), 0, 0, 0, 0}, proxytest.TokenFor("KEY")...)
		if _, err := pw.Write(frame); err != nil {
			t.Fatal(err)
		}
		want := "\x81" + string(rune(len(signature)+12)) + signature + " from-source"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
			t.Errorf("%q: %q %v", kind, got, err)
		}
	}
}

// TestScrubbedMessagesAreNotDelayed has a gRPC conversation. Each message ends like the beginning of the secret, and the next is
// sent only after it has arrived.
func TestScrubbedMessagesAreNotDelayed(t *testing.T) {
	t.Parallel()
	message := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
	}
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc+proto")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		controller := http.NewResponseController(w)
		_ = controller.Flush()
		in := make([]byte, 1)
		for range 3 {
			if _, err := io.ReadFull(r.Body, in); err != nil {
				return
			}
			_, _ = w.Write(message(proxytest.ScrubbedToken + " " + proxytest.ScrubbedToken[:9]))
			_ = controller.Flush()
		}
		w.Header().Set("Grpc-Status", "0")
		w.Header().Set("Grpc-Message", url.PathEscape(proxytest.ScrubbedToken))
	})
	l.Scrub(port)
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/", pr)
	res, err := l.HTTPClient(port, true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	want := message(proxytest.ScrubStars + " " + proxytest.ScrubbedToken[:9])
	got := make([]byte, len(want))
	for range 3 {
		if _, err := pw.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	_ = pw.Close()
	if rest := proxytest.ReadAll(t, res.Body); rest != "" || res.Trailer.Get("Grpc-Status") != "0" || proxytest.Leak(fmt.Sprint(res.Trailer)) != "" {
		t.Errorf("%q, %v", rest, res.Trailer)
	}
}
