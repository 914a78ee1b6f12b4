package http2_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"

	"boxgate/policy/name"
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
