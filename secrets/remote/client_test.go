package remote_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
	"boxgate/secrets/remote/remotetest"
)

// TestRequestsOnTheWire checks that the method follows from the body, and that headers set by the caller stay.
func TestRequestsOnTheWire(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var form url.Values
	server := remotetest.NewServer(t, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		got, form = r, r.PostForm
		w.Header().Set("Date", "Mon, 02 Jan 2040 15:04:05 GMT")
		fmt.Fprint(w, `{"a":"b"}`)
	})
	client := remote.NewClient(server.Roots())
	for _, c := range []struct {
		req            remote.Request
		method, accept string
		form           string
	}{
		{remote.Request{}, "GET", "application/json", ""},
		{remote.Request{Form: url.Values{"k": {"v w"}}}, "POST", "application/json", "k=v+w"},
		{remote.Request{Body: []byte("{}"), Header: http.Header{"Accept": {"text/xml"}}}, "POST", "text/xml", ""},
		{remote.Request{Method: "DELETE"}, "DELETE", "application/json", ""},
	} {
		c.req.URL = server.URL + "/path"
		var into map[string]string
		a, err := client.JSON(t.Context(), c.req, &into)
		if err != nil || a.Status != 200 || a.Date.Year() != 2040 || into["a"] != "b" {
			t.Errorf("%+v: %+v, %v, %v", c.req, a, into, err)
		}
		if got.Method != c.method || got.Header.Get("Accept") != c.accept || got.UserAgent() != "boxgate" || form.Encode() != c.form || got.URL.Path != "/path" || got.Header.Get("Accept-Encoding") != "" {
			t.Errorf("%+v: %s %v, form %q", c.req, got.Method, got.Header, form.Encode())
		}
	}
	if _, err := client.JSON(t.Context(), remote.Request{URL: "https://\x7f/canary"}, nil); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("a URL that is none: %v", err)
	}
}

// TestFailuresThatPass checks that a request without an answer, or with one that invites a retry, is retried twice, but
// not if it must not be received twice or the server limits the rate.
func TestFailuresThatPass(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		once   bool
		calls  int64
		words  string
	}{
		"unavailable":       {remotetest.Reply(503, nil), false, 3, "status 503"},
		"no answer":         {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, 3, "cannot be reached"},
		"once":              {remotetest.Reply(503, nil), true, 1, "status 503"},
		"no answer to once": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true, 1, "cannot be reached"},
		"wait":              {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "7"); w.WriteHeader(503) }, false, 1, "status 503"},
		"rate":              {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Retry-After", "7"); w.WriteHeader(429) }, false, 1, "status 429, to ask again in 7s"},
		"refused":           {remotetest.Reply(400, nil), false, 1, "status 400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := remotetest.NewServer(t, c.answer)
			_, _, err := remote.NewClient(server.Roots()).Do(t.Context(), remote.Request{URL: server.URL, Once: c.once})
			if err == nil || !strings.Contains(err.Error(), c.words) || server.Calls.Load() != c.calls {
				t.Errorf("%v, after %d calls", err, server.Calls.Load())
			}
		})
	}
	server := remotetest.NewServer(t, nil)
	server.Answers(func(w http.ResponseWriter, r *http.Request) {
		if server.Calls.Load() < 3 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		remotetest.Reply(200, map[string]string{"a": "b"})(w, r)
	})
	if _, body, err := remote.NewClient(server.Roots()).Do(t.Context(), remote.Request{URL: server.URL}); err != nil || !strings.Contains(string(body), `"a":"b"`) {
		t.Errorf("%q, %v", body, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	server.Answers(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		cancel()
	})
	before := server.Calls.Load()
	if _, _, err := remote.NewClient(server.Roots()).Do(ctx, remote.Request{URL: server.URL}); err == nil || server.Calls.Load() != before+1 {
		t.Errorf("after its caller has gone: %v, %d calls", err, server.Calls.Load()-before)
	}
}

// TestUnreachableServers checks that the error has a reason from a closed set, without the URL.
func TestUnreachableServers(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	defer close(slow)
	server := remotetest.NewServer(t, func(http.ResponseWriter, *http.Request) { <-slow })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	gone := remotetest.NewServer(t, nil)
	gone.Close()
	for want, c := range map[string]struct {
		ctx    context.Context
		client *remote.Client
		url    string
	}{
		"it did not answer in time":    {ctx, remote.NewClient(server.Roots()), server.URL},
		"its certificate is not valid": {t.Context(), remote.NewClient(nil), server.URL},
		"it cannot be reached":         {t.Context(), remote.NewClient(server.Roots()), gone.URL},
	} {
		if _, _, err := c.client.Do(c.ctx, remote.Request{URL: c.url + "/canary"}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestWhatServersSay checks that a refusal is shown with a code from a closed set, and that the server's text appears
// only in the log, without the request's secrets in any encoding, and without control characters.
func TestWhatServersSay(t *testing.T) {
	t.Parallel()
	const secret, earlier = "canary+secret/1", "canary-earlier"
	for label, c := range map[string]struct {
		answer     string
		code, said string
	}{
		"OAuth":        {`{"error":"invalid_client","error_description":"no ` + secret + `"}`, "invalid_client", "no [redacted]"},
		"unknown code": {`{"error":"canary","error_description":"x"}`, "", "x"},
		"Vault":        {`{"errors":["denied for ` + url.QueryEscape(secret) + `","and ` + base64.StdEncoding.EncodeToString([]byte(secret)) + `"]}`, "", "denied for [redacted] and [redacted]"},
		"Google":       {`{"error":{"status":"PERMISSION_DENIED","message":"of ` + earlier + `"}}`, "PERMISSION_DENIED", "of [redacted]"},
		"AWS":          {`{"__type":"com.amazon#ThrottlingException","message":"slow"}`, "ThrottlingException", "slow"},
		"AWS STS":      {`<E><Error><Code>SignatureDoesNotMatch</Code><Message>key</Message></Error></E>`, "SignatureDoesNotMatch", "key"},
		"terminal":     {`{"message":"a\u001b[2Jb\nc"}`, "", `a\x1b[2Jb\x0ac`},
		"no JSON":      {`canary`, "", ""},
		"odd error":    {`{"error":[1],"message":"x"}`, "", "x"},
		"long":         {`{"message":"` + strings.Repeat("x", 5000) + `"}`, "", ""},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			server := remotetest.NewServer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprint(w, c.answer)
			})
			client := remote.NewClient(server.Roots()).WithHidden(name.NewSecret(`{"token":"` + earlier + `"}`))
			_, _, err := client.Do(t.Context(), remote.Request{URL: server.URL, Header: http.Header{"Authorization": {"Bearer " + secret}}, Hide: []name.Secret{name.NewSecret(secret)}})
			refused, ok := errors.AsType[*remote.Error](err)
			if !ok || refused.Status != 403 || refused.Code != c.code || strings.Contains(err.Error()+refused.ServerText, "canary") || len(refused.ServerText) > 1000 {
				t.Fatalf("%v: %+v", err, refused)
			}
			if c.said != "" && refused.ServerText != c.said {
				t.Errorf("for the log: %q, want %q", refused.ServerText, c.said)
			}
		})
	}
}

// TestGone checks that a secret counts as gone only if the server reports that, not if the server is broken, busy or
// unsure.
func TestGone(t *testing.T) {
	t.Parallel()
	for answer, gone := range map[string]bool{
		`404 {}`: true, `410 {}`: true, `400 {"error":"invalid_grant"}`: true, `400 {"__type":"ResourceNotFoundException"}`: true, `400 {"error":{"status":"NOT_FOUND"}}`: true,
		`400 {"error":"invalid_client"}`: false, `403 {}`: false, `429 {}`: false, `500 {"error":"not_found"}`: false,
	} {
		var status int
		var body string
		if _, err := fmt.Sscanf(answer, "%d %s", &status, &body); err != nil {
			t.Fatal(err)
		}
		server := remotetest.NewServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		})
		_, _, err := remote.NewClient(server.Roots()).Do(t.Context(), remote.Request{URL: server.URL, Once: true})
		if remote.IsGone(err) != gone {
			t.Errorf("%s: gone %v", answer, !gone)
		}
	}
	if !remote.IsGone(fmt.Errorf("x: %w", remote.ErrGone)) || remote.IsGone(errors.New("x")) || remote.IsGone(nil) {
		t.Error("errors that are no refusals")
	}
}

// TestRetryAfter covers seconds and dates, and the maximum of a quarter of an hour.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "-1": 0, "99999999": 15 * time.Minute, "soon": 0,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat): 0, time.Now().Add(24 * time.Hour).UTC().Format(http.TimeFormat): 15 * time.Minute,
	} {
		server := remotetest.NewServer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", text)
			w.WriteHeader(http.StatusTooManyRequests)
		})
		_, _, err := remote.NewClient(server.Roots()).Do(t.Context(), remote.Request{URL: server.URL})
		if refused, ok := errors.AsType[*remote.Error](err); !ok || refused.RetryAfter != want {
			t.Errorf("%q: %+v, want %v", text, refused, want)
		}
	}
}

// TestErrorsOfClocks checks that a refusal that may be due to a clock contains the direction of the difference.
func TestErrorsOfClocks(t *testing.T) {
	t.Parallel()
	for skew, words := range map[time.Duration]string{time.Minute: "1m0s behind the server's", -time.Minute: "1m0s ahead of the server's"} {
		if text := (&remote.Error{Status: 400, Code: "invalid_grant", Skew: skew}).Error(); text != "it answered with status 400 (invalid_grant); the gateway's clock is "+words {
			t.Error(text)
		}
	}
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	if left := remote.TimeLeft(at.Add(time.Hour), remote.Answer{Date: at}, at.Add(5*time.Hour)); left != time.Hour {
		t.Errorf("by the server's clock %v are left", left)
	}
	if left := remote.TimeLeft(at.Add(time.Hour), remote.Answer{}, at); left != time.Hour {
		t.Errorf("by the local clock %v are left", left)
	}
}

// TestURLs checks that an endpoint is a plain https URL, or http on this host.
func TestURLs(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"https://login.example.com/token": true, "https://[2001:db8::1]:8443": true, "http://127.0.0.1:8200": true, "http://[::1]:1": true, "http://LocalHost": true,
		"http://login.example.com": false, "http://127.0.0.1.example.com": false, "http://10.0.0.1": false, "https://": false, "https:x": false, "login.example.com": false,
		"https://u:p@x.example": false, "https://x.example?a=b": false, "https://x.example/#f": false, "ftp://x.example": false, "https://\x7f": false, "": false,
	} {
		if err := remote.CheckURL(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestFields reads a text field of a JSON value; errors quote neither.
func TestFields(t *testing.T) {
	t.Parallel()
	const object = `{"a":"canary","n":1,"empty":"","null":null}`
	if v, err := remote.FieldOf(object, "a"); err != nil || v.Secret.Reveal() != "canary" {
		t.Error(err)
	}
	for _, c := range [][2]string{{object, "n"}, {object, "empty"}, {object, "null"}, {object, "A"}, {object, ""}, {`canary`, "a"}, {`["canary"]`, "a"}} {
		if v, err := remote.FieldOf(c[0], c[1]); err == nil || v.Secret.Reveal() != "" || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q of %s: %v", c[1], c[0], err)
		}
	}
}

// TestCertificates checks that a client with a file trusts only the certificates in it.
func TestCertificates(t *testing.T) {
	t.Parallel()
	server := remotetest.NewServer(t, remotetest.Reply(200, nil))
	client := remote.NewClient(server.Roots())
	if same, err := client.WithCA(""); err != nil || same != client {
		t.Errorf("without a file it is another client: %v", err)
	}
	file := t.TempDir() + "/ca"
	if _, err := client.WithCA(file); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := client.WithCA(file); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Error(err)
	}
}
