package sign_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/scrub"
	"boxgate/rule/sign/signtest"
)

const awsLiteral = `"{\"access_key_id\":\"AKIDREAL\",\"secret_access_key\":\"canary/secret+key\",\"session_token\":\"canary-token\"}"`

var awsKeys = signtest.Keys{ID: "AKIDREAL", Secret: "canary/secret+key", Token: "canary-token"}

const dummyScope = "AWS4-HMAC-SHA256 Credential=DUMMY/20260101/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=00"

// TestAWSSignature: whatever a box sends is signed as it arrives at the server, with the keys of the rule alone.
func TestAWSSignature(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Amz-Meta-Set": "by the rule"}, "placeholders": {"KEY": "customer key"}, "scrub": false, "sign": {"aws": {"credentials": `+awsLiteral+`, "region": "eu-central-1", "service": "s3"}}}}`)
		packed, _ := scrub.Encoded([]string{"gzip"}, []byte("hello"))
		gzipped := string(packed)
		large := strings.Repeat("x", 3<<20)
		for _, tt := range []struct {
			what, method, target string
			header               http.Header
			body                 io.Reader
			content              string
		}{
			{"nothing", "GET", "/", nil, nil, ""},
			{"a path and a query", "GET", "/bucket//a%20b/%C3%A4+~?list-type=2&prefix=a%2Fb&empty&x=1&x=0", nil, nil, ""},
			{"an empty post", "POST", "/bucket?uploads=", nil, nil, ""},
			{"a body", "PUT", "/bucket/key", http.Header{"Content-Type": {"text/plain"}, "X-Amz-Acl": {"private"}}, strings.NewReader("hello"), "hello"},
			{"a body of unknown length", "PUT", "/bucket/key", nil, proxytest.Unsized("hello"), "hello"},
			{"a signature of its own", "GET", "/bucket/key", http.Header{"Authorization": {dummyScope}, "X-Amz-Date": {"20260101T000000Z"}, "X-Amz-Security-Token": {"dummy"}, "X-Amz-S3session-Token": {"dummy"}, "X-Amz-Region-Set": {"*"}}, nil, ""},
			{"other spellings", "GET", "/bucket/key", http.Header{"authorization": {dummyScope}, "x_amz_date": {"1"}, "X-Amz_Security-Token": {"dummy"}, "x-amz-s3session_token": {"dummy"}, "X_Amz_Region_Set": {"*"}, "X-Amz-Meta_Set": {"dummy"}}, nil, ""},
			{"a presigned URL", "GET", "/bucket/key?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=DUMMY%2F20260101%2Feu-central-1%2Fs3%2Faws4_request&x-amz-d%61te=20260101T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&response-content-type=text%2Fplain&X-Amz-Signature=00&X-Amz-Security-Token=dummy&X-Amz-S3session-Token=dummy&x-amz-region-s%65t=*", nil, nil, ""},
			{"its hash", "PUT", "/bucket/key", http.Header{"X-Amz-Content-Sha256": {proxytest.HashOf(large)}}, strings.NewReader(large), large},
			{"unsigned", "PUT", "/bucket/key", http.Header{"X-Amz-Content-Sha256": {"UNSIGNED-PAYLOAD"}}, proxytest.Unsized(large), large},
			{"a body with trailers", "PUT", "/bucket/key", http.Header{"Trailer": {"X-End"}}, &proxytest.Trailed{Reader: strings.NewReader("hello")}, "hello"},
			{"with a trailer", "PUT", "/bucket/key", http.Header{"X-Amz-Content-Sha256": {"STREAMING-UNSIGNED-PAYLOAD-TRAILER"}, "X-Amz-Decoded-Content-Length": {"2"}, "Content-Encoding": {"aws-chunked"}}, strings.NewReader("2\r\nhi\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"), "2\r\nhi\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"},
			{"a placeholder", "GET", "/bucket/key", http.Header{"X-Amz-Server-Side-Encryption-Customer-Key": {proxytest.TokenFor("KEY")}}, nil, ""},
			{"compressed, with a placeholder", "PUT", "/bucket/key", http.Header{"X-Amz-Server-Side-Encryption-Customer-Key": {proxytest.TokenFor("KEY")}, "Content-Encoding": {"gzip"}}, strings.NewReader(gzipped), gzipped},
			{"repeated", "GET", "/bucket/key", http.Header{"X-Amz-Meta-A": {"one  two", "three"}}, nil, ""},
		} {
			status, text := proxytest.Send(t, client, tt.method, "https://"+proxytest.HostPort(port)+tt.target, tt.header, tt.body)
			got, body := up.Take()
			if status != 200 || got == nil || body != tt.content {
				t.Errorf("%s: %d %s, %d bytes arrived", tt.what, status, text, len(body))
				continue
			}
			if err := signtest.Verify(got, []byte(body), awsKeys, "eu-central-1", "s3"); err != nil {
				t.Errorf("%s: %v", tt.what, err)
			}
			if key := got.Header.Get("X-Amz-Server-Side-Encryption-Customer-Key"); key != "" && key != "customer key" {
				t.Errorf("%s: %s", tt.what, key)
			}
			if text := strings.ToLower(fmt.Sprint(got.Header, got.RequestURI)); strings.Contains(text, "session-token") || strings.Contains(text, "session_token") || strings.Contains(text, "region") || strings.Contains(text, "dummy") {
				t.Errorf("%s: what the box signed reached the server: %s", tt.what, text)
			}
			if got.Header.Get("X-Amz-Meta-Set") != "by the rule" || len(got.Header["X_amz_date"])+len(got.Header["X-Amz_security-Token"]) > 0 {
				t.Errorf("%s: the server received %v", tt.what, got.Header)
			}
		}
		e := l.Events.Wait(t, 15)[14]
		if e.Verdict != policy.Allow || strings.Join(e.Headers, " ") != "X-Amz-Meta-Set Authorization X-Amz-Date X-Amz-Security-Token X-Amz-Content-Sha256" {
			t.Errorf("event %+v", e)
		}
	})
}

// TestUnsignable: what cannot be signed is refused with a sentence, and nothing of it is forwarded.
func TestUnsignable(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		rule := func(more string) {
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"sign": {"aws": {"region": ["eu-central-1", "us-east-1"], "service": ["s3", "sts"], `+more+`}}}}`)
		}
		rule(`"credentials": ` + awsLiteral)
		own := func(scope string) http.Header {
			return http.Header{"Authorization": {strings.Replace(dummyScope, "eu-central-1/s3", scope, 1)}}
		}
		n := 0
		for _, tt := range []struct {
			what, target string
			header       http.Header
			body         io.Reader
			status       int
			reason       name.Reason
		}{
			{"no region", "/", nil, nil, 400, name.ReasonUnsignable},
			{"another region", "/", own("eu-west-1/s3"), nil, 400, name.ReasonUnsignable},
			{"another service", "/", own("us-east-1/iam"), nil, 400, name.ReasonUnsignable},
			{"two signatures", "/?X-Amz-Credential=DUMMY%2F20260101%2Fus-east-1%2Fs3%2Faws4_request", own("us-east-1/s3"), nil, 400, name.ReasonUnsignable},
			{"chunks that are signed", "/", http.Header{"Authorization": {dummyScope}, "X-Amz-Content-Sha256": {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}}, strings.NewReader("2;chunk-signature=00\r\nhi\r\n"), 400, name.ReasonUnsignable},
			{"chunks that are signed, with a trailer", "/", http.Header{"Authorization": {dummyScope}, "X-Amz-Content-Sha256": {"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"}}, strings.NewReader("2"), 400, name.ReasonUnsignable},
			{"no hash at all", "/", http.Header{"Authorization": {dummyScope}, "X-Amz-Content-Sha256": {"zz"}}, strings.NewReader("2"), 400, name.ReasonUnsignable},
			{"two hashes", "/", http.Header{"Authorization": {dummyScope}, "X-Amz-Content-Sha256": {proxytest.HashOf("2"), "UNSIGNED-PAYLOAD"}}, strings.NewReader("2"), 400, name.ReasonUnsignable},
			{"version 2 in the query", "/?AWSAccessKeyId=DUMMY&Expires=1&Signature=x", http.Header{"Authorization": {dummyScope}}, nil, 400, name.ReasonUnsignable},
			{"version 2, in another way", "/?Signature%56ersion=2", http.Header{"Authorization": {dummyScope}}, nil, 400, name.ReasonUnsignable},
			{"a semicolon", "/?a=b;X-Amz-Signature=1", http.Header{"Authorization": {dummyScope}}, nil, 400, name.ReasonUnsignable},
			{"a large body", "/", http.Header{"Authorization": {dummyScope}}, proxytest.Unsized(strings.Repeat("x", 1<<20+1)), 413, name.ReasonUnsignable},
		} {
			status, text := proxytest.Send(t, client, "PUT", "https://"+proxytest.HostPort(port)+tt.target, tt.header, tt.body)
			n++
			if got, _ := up.Take(); got != nil {
				t.Errorf("%s: the server received %s %v", tt.what, got.RequestURI, got.Header)
			}
			if status != tt.status || !strings.Contains(text, string(tt.reason)) || strings.Contains(text, "canary") {
				t.Errorf("%s: %d %s", tt.what, status, text)
			}
			if e := l.Events.Wait(t, n)[n-1]; e.Verdict != policy.Deny || e.Reason != tt.reason || len(e.Headers) > 0 {
				t.Errorf("%s: event %+v", tt.what, e)
			}
		}
		// The client's own scope chooses among those of the rule.
		if status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/", own("us-east-1/sts"), strings.NewReader("Action=x")); status != 200 {
			t.Errorf("a scope of the rule: %d %s", status, text)
		} else if got, body := up.Take(); got == nil {
			t.Error("nothing arrived")
		} else if err := signtest.Verify(got, []byte(body), awsKeys, "us-east-1", "sts"); err != nil {
			t.Error(err)
		}
		for _, keys := range []string{`{"secret": "s"}`, `{"secret": "broken"}`, `{"secret": "unknown"}`} {
			rule(`"credentials": ` + keys)
			status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/", own("us-east-1/s3"), nil)
			if got, _ := up.Take(); got != nil || status != 502 || !strings.Contains(text, "secret_unavailable") {
				t.Errorf("%s: %d %s", keys, status, text)
			}
		}
	})
}

// TestAttackSignedPathBesideTheRule: what AWS's services would read as another path than the one that a rule has judged is not signed.
func TestAttackSignedPathBesideTheRule(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		spec := proxytest.AllowAll
		spec.Rules = []match.RequestRule{{Hosts: []string{proxytest.API}, Paths: []string{"/public/*"}, Action: "allow"}, {Hosts: []string{proxytest.API}, Action: "deny"}}
		l.Rules(spec, `{"`+proxytest.HostPort(port)+`": {"sign": {"aws": {"region": "eu-central-1", "service": "execute-api", "credentials": `+awsLiteral+`}}}}`)
		ask := func(path string) (int, *http.Request) {
			t.Helper()
			status, _ := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+path, nil, nil)
			got, _ := up.Take()
			return status, got
		}
		for _, path := range []string{
			"/secret", "/public/../secret", "//secret", "/./secret", "/public//../secret", "/public/a/../../secret", "/public/%2e%2e/secret", "/public/.%2E/secret", "/public%2f..%2fsecret",
			"/public/..;/secret", "/public/;/../secret", "/public/%5c../secret", "/public/%252e%252e/secret", "/public/\uff0e\uff0e/secret", "/public/%c0%ae%c0%ae/secret", "/public/..",
		} {
			if status, got := ask(path); status != 403 || got != nil {
				t.Errorf("%s: %d, the server received %v", path, status, got)
			}
		}
		for _, path := range []string{"/public/a", "/public/a%20b/~"} {
			status, got := ask(path)
			if status != 200 || got == nil || got.RequestURI != path {
				t.Errorf("%s: %d, the server received %v", path, status, got)
			}
		}
	})
}

// TestExpiredAWSCredentials: temporary credentials are not used beyond their time, by the clock of the gateway.
func TestExpiredAWSCredentials(t *testing.T) {
	t.Parallel()
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"sign": {"aws": {"region": "eu-central-1", "service": "s3", "credentials":
			"{\"Version\":1,\"AccessKeyId\":\"AKIDREAL\",\"SecretAccessKey\":\"canary/secret+key\",\"SessionToken\":\"canary-token\",\"Expiration\":\"2030-01-02T03:04:05Z\"}"}}}}`)
		var expired atomic.Bool
		l.Core.Clock = func() time.Time {
			if expired.Load() {
				return end
			}
			return end.Add(-time.Second)
		}
		status, _ := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/", nil, nil)
		got, _ := up.Take()
		if status != 200 || got == nil || got.Header.Get("X-Amz-Date") != "20300102T030404Z" {
			t.Fatalf("%d %v", status, got)
		}
		if err := signtest.Verify(got, nil, awsKeys, "eu-central-1", "s3"); err != nil {
			t.Error(err)
		}
		expired.Store(true)
		status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/", nil, nil)
		if got, _ := up.Take(); got != nil || status != 502 || !strings.Contains(text, "secret_unavailable") {
			t.Errorf("expired: %d %s", status, text)
		}
	})
}

// TestHMACSignature: the text of the template is made of what arrives.
func TestHMACSignature(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Core.Clock = func() time.Time { return time.Unix(1900000000, 5e6) }
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the \"value\""}, "places": ["header", "json"], "query": {"id": "7"}, "sign": {"hmac": {
			"key": {"secret": "s"}, "header": "X-Signature", "format": "t={timestamp},v1={signature}", "timestamp": {"header": "X-Time", "format": "unix_ms"},
			"template": "{timestamp}\n{method}\n{path}\n{query}\n{body_sha256}\n{body}"}}}}`)
		status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/a%2Fb/c?x={body}&id=8", http.Header{
			"X-Signature": {"own"}, "x_time": {"1"}, "Content-Type": {"application/json"},
		}, proxytest.Unsized(`{"key":"`+proxytest.TokenFor("KEY")+`"}`))
		got, body := up.Take()
		if status != 200 || got == nil {
			t.Fatalf("%d %s", status, text)
		}
		const path, query, want = "/a%2Fb/c", "x={body}&id=7", `{"key":"the \"value\""}`
		mac := hmac.New(sha256.New, []byte("from-source"))
		_, _ = io.WriteString(mac, "1900000000005\nPOST\n"+path+"\n"+query+"\n"+proxytest.HashOf(want)+"\n"+want)
		if sig := "t=1900000000005,v1=" + hex.EncodeToString(mac.Sum(nil)); got.Header.Get("X-Signature") != sig || len(got.Header["X-Signature"]) != 1 {
			t.Errorf("the signature of %s %q is %q, want %q", got.RequestURI, body, got.Header["X-Signature"], sig)
		}
		if got.RequestURI != path+"?"+query || body != want || got.Header.Get("X-Time") != "1900000000005" || got.Header["X_time"] != nil {
			t.Errorf("%s %q %v", got.RequestURI, body, got.Header)
		}
		if got.ContentLength != int64(len(want)) && got.Header.Get("Content-Length") != strconv.Itoa(len(want)) {
			t.Errorf("Content-Length %d", got.ContentLength)
		}
		if status, _ := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/", nil, strings.NewReader(strings.Repeat("x", 1<<20+1))); status != 413 {
			t.Errorf("a large body: %d", status)
		}
	})
}

// TestSignatureAwaitsTheBody: secrets are those of when the body has come, not of when its head did.
func TestSignatureAwaitsTheBody(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		var value atomic.Value
		value.Store("old")
		asked := make(chan struct{}, 16)
		l.With(func(c *proxy.Config) {
			c.Secrets = proxytest.Sources{"s": func(context.Context) (string, error) {
				asked <- struct{}{}
				if value.Load() == "" {
					return "", errors.New("revoked")
				}
				return value.Load().(string), nil
			}}
		})
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": {"secret": "s"}}, "sign": {"hmac": {"key": "k", "header": "X-Signature", "template": "{body}"}}}}`)
		for i, next := range []string{"new", ""} {
			pr, pw := io.Pipe()
			go func() {
				_, _ = io.WriteString(pw, "first ")
				<-asked // for the head
				value.Store(next)
				_, _ = io.WriteString(pw, "last")
				_ = pw.Close()
			}()
			status, _ := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/", nil, pr)
			<-asked // for the whole
			got, _ := up.Take()
			if i == 0 && (status != 200 || got == nil || got.Header.Get("X-Key") != "new") || i == 1 && (status != 502 || got != nil) {
				t.Errorf("%q: %d %v", next, status, got)
			}
		}
	})
}

// TestSessionTokenInErrors: a session token is masked where a server prints what it was sent, and with a rule that does not scrub,
// other responses pass as they are, also parts of objects.
func TestSessionTokenInErrors(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		w.Header().Set("X-Token", r.Header.Get("X-Amz-Security-Token"))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, r.Header.Get("X-Amz-Security-Token")+r.Header.Get("Range"))
	})
	for _, h2 := range []bool{false, true} {
		for _, more := range []string{"", `, "scrub": true`} {
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"sign": {"aws": {"credentials": `+awsLiteral+`, "region": "eu-central-1", "service": "s3"}}`+more+`}}`)
			client := l.HTTPClientLater(port, h2)
			for range 2 {
				if status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/?status=403", nil, nil); status != 403 || text != strings.Repeat("*", len(awsKeys.Token)) {
					t.Errorf("HTTP/2 %v%s: %d %s", h2, more, status, text)
				}
			}
			status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/?status=206", http.Header{"Range": {"bytes=0-1"}}, nil)
			if more == "" && (status != 206 || text != awsKeys.Token+"bytes=0-1") || more != "" && strings.Contains(text, awsKeys.Token) {
				t.Errorf("HTTP/2 %v%s: %d %s", h2, more, status, text)
			}
		}
	}
}
