package har_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"boxgate/proxy/har"
	"boxgate/proxy/proxytest"
)

// archive is the part of HAR 1.2 that tests read.
type archive struct {
	Log struct {
		Version string
		Creator struct{ Name string }
		Entries []entry
		Boxgate har.Ending `json:"_boxgate"`
	}
}

type entry struct {
	StartedDateTime string
	Time            float64
	Request         struct {
		Method, URL, HTTPVersion string
		Headers, Cookies         []pair
		QueryString              []pair
		PostData                 struct{ MimeType, Text, Comment string }
		HeadersSize, BodySize    int64
	}
	Response struct {
		Status      int
		HTTPVersion string
		Headers     []pair
		Cookies     []pair
		Trailers    []pair `json:"_trailers"`
		Content     struct {
			Size                              int64
			MimeType, Text, Encoding, Comment string
		}
		RedirectURL string
		BodySize    int64
	}
	Timings      map[string]float64
	ResourceType string `json:"_resourceType"`
	Boxgate      struct {
		Verdict, Reason, Rule, Error string
		PolicyVersion                uint64 `json:"policy_version"`
		Incomplete                   bool
	} `json:"_boxgate"`
}

type pair struct{ Name, Value string }

// field returns the value of a field; absent is "-".
func field(list []pair, name string) string {
	for _, p := range list {
		if strings.EqualFold(p.Name, name) {
			return p.Value
		}
	}
	return "-"
}

// recording is a capture with the archive that is written from it.
type recording struct {
	t       testing.TB
	capture *har.Capture
	release func()
	text    bytes.Buffer
}

// record begins a capture of the box.
func record(t testing.TB, l *proxytest.Rig, o har.Options) *recording {
	t.Helper()
	r := &recording{t: t}
	var ok bool
	if r.capture, r.release, ok = l.Proxy.Capture(l.Box, o); !ok {
		t.Fatal("the box is recorded already")
	}
	t.Cleanup(r.release)
	return r
}

// finish ends the capture after n entries, and returns the archive.
func (r *recording) finish(n int) archive {
	r.t.Helper()
	w := har.NewWriter(&r.text, r.capture, func(b []byte) []byte { return b })
	if err := w.Begin("1.0"); err != nil {
		r.t.Fatal(err)
	}
	limit := time.After(time.Minute)
	for range n {
		select {
		case e := <-r.capture.Entries():
			if err := w.Add(e); err != nil {
				r.t.Fatal(err)
			}
		case <-limit:
			r.t.Fatalf("fewer than %d entries: %s", n, r.text.String())
		}
	}
	r.capture.End(har.EndTime)
	if err := w.End(); err != nil {
		r.t.Fatal(err)
	}
	var a archive
	if err := json.Unmarshal(r.text.Bytes(), &a); err != nil {
		r.t.Fatalf("%v: %s", err, r.text.String())
	}
	return a
}

// forms returns forms of a secret in which servers may reflect it.
func forms(secret string) []string {
	b64 := base64.StdEncoding.EncodeToString
	all := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), hex.EncodeToString([]byte(secret))}
	for _, coded := range []string{b64([]byte(secret)), b64([]byte("x" + secret)), b64([]byte("xy" + secret))} {
		coded = strings.TrimRight(coded, "=")
		all = append(all, coded[4:len(coded)-4])
	}
	return all
}

// leaks returns a form of the secret that text has, or "".
func leaks(text, secret string) string {
	for _, form := range forms(secret) {
		if strings.Contains(text, form) {
			return form
		}
	}
	return ""
}

// mirror reflects the head and the body of requests in every part of the response, compressed if asked for.
func mirror(w http.ResponseWriter, r *http.Request) {
	var sent bytes.Buffer
	_ = r.Write(&sent)
	text := r.RequestURI + "\n" + sent.String()
	for name, values := range r.Header {
		w.Header()["X-Mirror-"+name] = values
		text += base64.StdEncoding.EncodeToString([]byte(values[0])) + " " + hex.EncodeToString([]byte(values[0])) + "\n"
	}
	w.Header().Set("X-Uri", r.RequestURI)
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Trailer", "X-End")
	body := []byte(text)
	if r.Header.Get("X-Pack") != "" {
		w.Header().Set("Content-Encoding", "gzip")
		body = packed(text)
	}
	if r.Header.Get("X-Status") != "" {
		w.WriteHeader(http.StatusBadRequest)
	}
	_, _ = w.Write(body)
	w.Header().Set("X-End", r.RequestURI+r.Header.Get("Authorization"))
}
