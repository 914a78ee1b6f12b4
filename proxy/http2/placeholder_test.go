package http2_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy/proxytest"
)

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
