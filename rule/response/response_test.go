package response_test

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"boxgate/policy"
	"boxgate/proxy/proxytest"
	"boxgate/rule/response"
)

// TestFieldsAreRemoved: whatever the version of HTTP on each side, and whether the response is scrubbed, a box is not sent the fields: in an
// interim head, the final one and the trailers. Others pass.
func TestFieldsAreRemoved(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		client, server bool // HTTP/2
		scrub          string
	}{
		{"h1 to h1", false, false, "false"}, {"h1 to h2", false, true, "false"}, {"h2 to h1", true, false, "false"}, {"h2 to h2", true, true, "false"},
		{"h1 to h1, scrubbed", false, false, "true"}, {"h2 to h1, scrubbed", true, false, "true"}, {"h2 to h2, scrubbed", true, true, "true"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			_, port := r.HTTPSServer(tt.server, serve)
			r.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"Authorization": "literal-of-the-rule"}, "scrub": `+tt.scrub+`,
				"response_headers": {"remove": ["X-Internal", "Server-Timing"]}}}`)
			var interim []textproto.MIMEHeader
			trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				interim = append(interim, h)
				return nil
			}}
			req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", "https://"+proxytest.HostPort(port)+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := r.HTTPClient(port, tt.client).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil || string(body) != "content" {
				t.Fatalf("%q, %v", body, err)
			}
			if len(interim) != 1 || interim[0].Get("Link") == "" || interim[0].Get("X-Internal") != "" {
				t.Errorf("interim heads: %v", interim)
			}
			if res.Header.Get("X-Internal") != "" || res.Header.Get("Server-Timing") != "" || res.Header.Get("X-Other") != "other" {
				t.Errorf("the final head: %v", res.Header)
			}
			if res.Trailer.Get("X-Internal") != "" || res.Trailer.Get("X-Checksum") != "sum" {
				t.Errorf("the trailers: %v", res.Trailer)
			}
		})
	}
}

// serve answers with the fields at each place.
func serve(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("X-Internal", "canary")
	h.Set("Link", "</style.css>")
	w.WriteHeader(http.StatusEarlyHints)
	h.Set("Server-Timing", "db;dur=53")
	h.Set("X-Other", "other")
	h.Set("Trailer", "X-Checksum")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, "content")
	h.Set("X-Checksum", "sum")
	h.Set(http.TrailerPrefix+"X-Internal", "canary")
}

// TestMistakes: each is named, with the place where it is.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for member, want := range map[string]string{
		`[]`:                                   `is a list; want an object with "remove"`,
		`{}`:                                   `has no "remove"`,
		`{"remove": "X-A"}`:                    `/remove: is a string; want a list of strings`,
		`{"remove": []}`:                       `/remove: is an empty list`,
		`{"remove": [1]}`:                      `/remove/0: is a number; want a string`,
		`{"remove": ["X A"]}`:                  `/remove/0: "X…" is not the name of a header field`,
		`{"remove": [""]}`:                     `/remove/0: "" is not the name of a header field`,
		`{"remove": ["X-A", "x-a"]}`:           `/remove/1: "x-a" is there twice`,
		`{"remove": ["Content-Length"]}`:       `/remove/0: "Content-Length" cannot be removed`,
		`{"remove": ["Sec-WebSocket-Accept"]}`: `/remove/0: "Sec-WebSocket-Accept" cannot be removed`,
		`{"removed": ["X-A"], "remove": ["X-B"]}`:                `/removed: unknown key "removed"; use "remove"`,
		`{"remove": ["X-A"` + strings.Repeat(`, "X"`, 64) + `]}`: `the limit is 64`,
	} {
		_, err := policy.ParseHeaderRules([]byte(`{"a.test": {"`+response.Key+`": `+member+`}}`), nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", member, err, want)
		}
	}
	if _, err := policy.ParseHeaderRules([]byte(`{"a.test": {"deny": true, "response_headers": {"remove": ["X-A"]}}}`), nil); err == nil {
		t.Error("a rule that refuses requests has responses as well")
	}
}

// TestLine: what `gateway headers list` prints.
func TestLine(t *testing.T) {
	t.Parallel()
	if got := (response.Kind{}).Line([]byte(`{"remove": ["X-A", "X-B"]}`)); got != "response: -X-A -X-B" {
		t.Error(got)
	}
	if got := (response.Kind{}).Line([]byte(`1`)); got != "" {
		t.Error(got)
	}
}
