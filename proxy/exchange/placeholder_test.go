package exchange_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
)

// TestPlaceholders: on the rule's host every token in a header, and in basic authentication, becomes the value.
func TestPlaceholders(t *testing.T) {
	t.Parallel()
	key, other := proxytest.TokenFor("KEY"), proxytest.TokenFor("OTHER")
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Set": "set"}, "placeholders": {"KEY": "the-value", "OTHER": {"secret": "s"}, "UNUSED": {"secret": "broken"}}}}`)
		for _, tt := range []struct{ name, send, want string }{
			{"Authorization", "Bearer " + key, "Bearer the-value"},
			{"authorization", key, "the-value"},
			{"X-Api-Key", key + other + key, "the-valuefrom-sourcethe-value"},
			{"X-Api-Key", "a" + key + "b", "athe-valueb"},
			{"Cookie", "session=" + key, "session=the-value"},
			{"X_Api_Key", other, "from-source"},
			{"Authorization", proxytest.Basic("user", key), proxytest.Basic("user", "the-value")},
			{"Authorization", proxytest.Basic(other, key), proxytest.Basic("from-source", "the-value")},
			{"Authorization", strings.TrimRight(proxytest.Basic("x-access-token", "pre"+key), "="), proxytest.Basic("x-access-token", "prethe-value")},
			{"Authorization", "bASIC  " + base64.RawURLEncoding.EncodeToString([]byte(key+":??>>")), "bASIC " + base64.StdEncoding.EncodeToString([]byte("the-value:??>>"))},
			{"Authorization", "Basic " + key, "Basic the-value"},
			{"Authorization", proxytest.Basic("nothing", "here"), proxytest.Basic("nothing", "here")},
			{"X-Other", "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+key)), "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+key))},
			{"X-Almost", key[:len(key)-1], key[:len(key)-1]},
		} {
			req, _ := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/path?q=1", strings.NewReader("body "+key[1:]))
			req.Header[tt.name] = []string{tt.send}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text := proxytest.ReadAll(t, res.Body)
			_ = res.Body.Close()
			got, body := up.Take()
			if res.StatusCode != 200 || got == nil {
				t.Fatalf("%s: %s: %d %s", tt.name, tt.send, res.StatusCode, text)
			}
			if v := got.Header[http.CanonicalHeaderKey(tt.name)]; len(v) != 1 || v[0] != tt.want {
				t.Errorf("%s: sent %q, the upstream received %q, want %q", tt.name, tt.send, v, tt.want)
			}
			if got.Header.Get("X-Set") != "set" || body != "body "+key[1:] {
				t.Errorf("%s: X-Set %q, body %q: bodies pass as they are", tt.name, got.Header.Get("X-Set"), body)
			}
		}
		e := l.Events.Wait(t, 1)[0]
		if e.Verdict != policy.Allow || !slices.Equal(e.Headers, []string{"X-Set", "Authorization"}) {
			t.Errorf("event %+v", e)
		}
		// A new value, and then a new rule, take effect on the open connection.
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "rotated"}}}`)
		if res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{"X-Key": {key}}); res.StatusCode != 200 {
			t.Errorf("after the change: %d", res.StatusCode)
		}
		if got, _ := up.Take(); got.Header.Get("X-Key") != "rotated" || got.Header.Get("X-Set") != "" {
			t.Errorf("after the change the upstream received %v", got.Header)
		}
		if res, _ := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{"X-Key": {other}}); res.StatusCode != 403 {
			t.Errorf("a placeholder that the rule no longer has: %d", res.StatusCode)
		}
	})
}

// TestPlaceholderLeaks: a token anywhere else is refused, told to the log, and nothing is forwarded.
func TestPlaceholderLeaks(t *testing.T) {
	t.Parallel()
	key, foreign, unknown := proxytest.TokenFor("KEY"), proxytest.TokenFor("FOREIGN"), proxytest.ForeignToken("KEY")
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(policy.Spec{Mode: policy.ModeAllowAll, Rules: []match.RequestRule{{Hosts: []string{"*"}, Methods: []string{"PURGE"}, Action: "deny"}}},
			`{"`+proxytest.HostPort(port)+`": {"headers": {"X-Set": "set"}, "placeholders": {"KEY": "the-value"}}, "elsewhere.test": {"placeholders": {"FOREIGN": "not-yours"}}}`)
		n := 0
		for _, tt := range []struct {
			what, path string
			header     http.Header
			log        string
		}{
			{"path", "/v1/" + key, nil, "the placeholder KEY in the request line"},
			{"query", "/?token=" + key, nil, "the placeholder KEY in the query"},
			{"a variable of another host", "/", http.Header{"X-Key": {foreign}}, "the placeholder FOREIGN in a header (X-Key)"},
			{"a variable of another host in basic authentication", "/", http.Header{"Authorization": {proxytest.Basic("u", foreign)}}, "the placeholder FOREIGN in the password of basic authentication (Authorization)"},
			{"a token of another box", "/", http.Header{"X-Key": {unknown}}, "a placeholder in a header (X-Key)"},
			{"the user of basic authentication", "/", http.Header{"Authorization": {proxytest.Basic(unknown, "p")}}, "a placeholder in the user of basic authentication (Authorization)"},
			{"the name of a header", "/", http.Header{"X-" + key: {"1"}}, "in a field that is not passed on"},
			{"a header that the gateway sets", "/", http.Header{"X-Set": {foreign}}, "the placeholder FOREIGN in a header (X-Set)"},
			{"one good and one bad", "/", http.Header{"X-Key": {key}, "X-Other": {foreign}}, "the placeholder FOREIGN in a header (X-Other)"},
		} {
			res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+tt.path, tt.header)
			n++
			if got, _ := up.Take(); got != nil {
				t.Fatalf("%s: the upstream received %s %v", tt.what, got.RequestURI, got.Header)
			}
			if res.StatusCode != 403 || !strings.Contains(text, `"placeholder_leak"`) || strings.Contains(text, "the-value") {
				t.Errorf("%s: %d %s", tt.what, res.StatusCode, text)
			}
			e := l.Events.Wait(t, n)[n-1]
			if e.Verdict != policy.Deny || e.Reason != name.ReasonPlaceholderLeak || !strings.Contains(e.Error, tt.log) || len(e.Headers) != 0 {
				if !strings.EqualFold(e.Error, tt.log) { // HTTP/2 writes names in lower case
					t.Errorf("%s: event %+v", tt.what, e)
				}
			}
		}
		many := http.Header{"X-Key": {strings.Repeat(key, 65)}}
		if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", many); res.StatusCode != 400 || !strings.Contains(text, "too many placeholders") {
			t.Errorf("more than the most: %d %s", res.StatusCode, text)
		}
		if got, _ := up.Take(); got != nil {
			t.Error("more than the most was forwarded")
		}
	})
}

// TestPlaceholderLeaksOverPlainHTTP: without TLS there is no host whose value it could be.
func TestPlaceholderLeaksOverPlainHTTP(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	up := &proxytest.Recorder{}
	_, port := l.HTTPServer(up.Serve)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the-value"}}}`)
	c := l.DialPair("", port, false)
	r := bufio.NewReader(c)
	for i, head := range []string{
		"GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nAuthorization: Bearer " + proxytest.TokenFor("KEY") + "\r\n\r\n",
		"GET /" + proxytest.TokenFor("KEY") + " HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nAuthorization: " + proxytest.Basic(proxytest.TokenFor("KEY"), "") + "\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: " + proxytest.HostPort(port) + "\r\nProxy-Authorization: " + proxytest.TokenFor("KEY") + "\r\n\r\n",
	} {
		res := proxytest.Ask(t, c, r, head, "GET")
		if text := proxytest.ReadAll(t, res.Body); res.StatusCode != 403 || !strings.Contains(text, "placeholder_leak") {
			t.Errorf("%d: %d %s", i, res.StatusCode, text)
		}
		if e := l.Events.Wait(t, i+1)[i]; e.Reason != name.ReasonPlaceholderLeak {
			t.Errorf("%d: event %+v", i, e)
		}
	}
	if got, _ := up.Take(); got != nil {
		t.Errorf("the upstream received %v", got.Header)
	}
}

// TestWebSocketWithPlaceholder: the upgrade's head is a head like others, over both versions.
func TestWebSocketWithPlaceholder(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed("from-source")} })
	_, port := l.HTTPSServer(false, proxytest.EchoWebSocket)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": {"secret": "s"}}, "scrub": false}}`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/", &websocket.DialOptions{
		HTTPClient: l.HTTPClient(port, false), HTTPHeader: http.Header{"Authorization": {"Bearer " + proxytest.TokenFor("KEY")}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if err := c.Write(ctx, websocket.MessageText, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(ctx); err != nil || string(got) != "Bearer from-source hi" {
		t.Errorf("%q %v", got, err)
	}
	if _, res, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/?token="+proxytest.TokenFor("KEY"), &websocket.DialOptions{HTTPClient: l.HTTPClient(port, false)}); err == nil || res.StatusCode != 403 {
		t.Errorf("in the target: %v", err)
	}
	//lint:ignore SA1019 net/http's own client refuses the field :protocol
	client, err := (&http2.Transport{}).NewClientConn(l.DialPair(proxytest.API, port, true, "h2"))
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	defer pw.Close()
	req, _ := http.NewRequestWithContext(ctx, "CONNECT", "https://"+proxytest.HostPort(port)+"/", pr)
	req.Header[":protocol"] = []string{"websocket"}
	req.Header.Set("Authorization", "Bearer "+proxytest.TokenFor("KEY"))
	res, err := client.RoundTrip(req)
	if err != nil || res.StatusCode != 200 {
		t.Fatal(err, res)
	}
	if _, err := pw.Write([]byte{0x81, 0x82, 0, 0, 0, 0, 'h', 'i'}); err != nil {
		t.Fatal(err)
	}
	want := "\x81\x15Bearer from-source hi"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
		t.Errorf("%q %v", got, err)
	}
}

// TestAttackPlaceholderWhereServersAnswer: a box puts a token where ordinary servers send back what they got: into the
// origin of a cross-origin request, the ID of the request, the media type that an error page names. Nothing is forwarded.
func TestAttackPlaceholderWhereServersAnswer(t *testing.T) {
	t.Parallel()
	key := proxytest.TokenFor("KEY")
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": "the-value"}}}`)
		for i, label := range []string{
			"Origin", "Referer", "User-Agent", "Content-Type", "Content-Language", "Accept", "Accept-Language", "If-None-Match", "If-Match",
			"Access-Control-Request-Headers", "X-Request-Id", "X_Request_ID", "x-correlation-id", "Idempotency-Key", "Traceparent", "X-B3-TraceId",
			"X-Forwarded-For", "Forwarded", "X-Http-Method-Override", "Range", "From", "Grpc-Timeout", "Sec-Fetch-Site",
			"Sec-WebSocket-Protocol", "X-Goog-Meta-Owner", "X-Amz-Meta-Owner", "X_Amz_Meta_Owner", "X-Ms-Meta-Token", "X-Object-Meta-A", "X-Container-Meta-Temp-Url-Key",
			"X-Account-Meta-A", "X-Oss-Meta-A", "X-Amz-Tagging", "X-Amz-Website-Redirect-Location", "X-Ms-Blob-Content-Disposition", "X-Goog-User-Project",
			"Upload-Metadata", "X-Bz-Info-A", "Anthropic-Version", "Openai-Organization", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", "Last-Event-Id",
			"X-Oss-Tagging", "X-Cos-Storage-Class", "X-Obs-Acl", "X-Tos-Tagging", "X-Bce-Storage-Class", "X-Bz-File-Name", "X-Emc-Meta", "X-Emc-Listable-Meta",
			"X-Goog-Custom-Audit-Api-Key", "X-Goog-Encryption-Kms-Key-Name", "X-Amz-Server-Side-Encryption-Bucket-Key-Enabled", "X-Symlink-Target",
			"HTTP-Referer", "X-Title", "Helicone-Property-Token", "Cf-Aig-Metadata", "X-Portkey-Metadata",
		} {
			req, _ := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/", strings.NewReader("x"))
			req.Header[label] = []string{"https://" + key}
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if got, _ := up.Take(); got != nil || res.StatusCode != 403 || !strings.Contains(string(text), "placeholder_leak") {
				t.Errorf("%s: %d %s", label, res.StatusCode, text)
			}
			e := l.Events.Wait(t, i+1)[i]
			if e.Reason != name.ReasonPlaceholderLeak || !strings.Contains(strings.ToLower(e.Error), "the placeholder key in a header that holds no key ("+strings.ToLower(label)) {
				t.Errorf("%s: event %+v", label, e)
			}
		}
		for _, name := range []string{"Authorization", "Cookie", "X-Api-Key", "Private-Token", "X-Amz-Security-Token", "X-Auth-Key", "X-Goog-Api-Key",
			"X-Ms-Encryption-Key", "X-Ms-Copy-Source-Authorization", "X-Oss-Security-Token", "X-Cos-Security-Token", "Helicone-Auth", "Cf-Aig-Authorization", "X-Portkey-Api-Key", "X-Custom", "Mcp-Session-Id"} {
			if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{name: {key}}); res.StatusCode != 200 {
				t.Errorf("%s: %d %s", name, res.StatusCode, text)
			}
		}
	})
}
