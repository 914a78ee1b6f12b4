package har_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/har"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/scrub"
)

const canary = "canary/S3cret+0123456789"

func packed(text string) []byte {
	b, err := scrub.Encoded([]string{"gzip"}, []byte(text))
	if err != nil {
		panic(err)
	}
	return b
}

type tokens struct{}

func (tokens) Token(policy.BoxID, string, string) (name.Secret, error) {
	return name.NewSecret("token-" + canary), nil
}

// kinds are rules of every kind that sends a secret, with requests that make it do so. The servers reflect what they get.
var kinds = map[string]string{
	"header":           `{"headers": {"Authorization": "Bearer ` + canary + `"}, "scrub": false}`,
	"header of source": `{"headers": {"X-Key": {"secret": "s"}}, "scrub": false}`,
	"basic":            `{"headers": {"Authorization": "Basic dXNlcjpjYW5hcnkvUzNjcmV0KzAxMjM0NTY3ODk="}, "scrub": false}`,
	"scrubbed":         `{"headers": {"Authorization": "Bearer ` + canary + `"}, "scrub": true}`,
	"placeholder":      `{"placeholders": {"KEY": "` + canary + `"}, "scrub": false, ` + proxytest.Everywhere + `}`,
	"source":           `{"placeholders": {"KEY": {"secret": "s"}}, "scrub": false, ` + proxytest.Everywhere + `}`,
	"query":            `{"query": {"key": "` + canary + `"}, "scrub": false}`,
	"query of source":  `{"query": {"key": {"secret": "s"}}, "scrub": false}`,
	"aws":              `{"sign": {"aws": {"credentials": "{\"access_key_id\":\"AKID\",\"secret_access_key\":\"` + canary + `\",\"session_token\":\"session-` + canary + `\"}", "region": "eu-central-1", "service": "s3"}}, "scrub": false}`,
	"hmac":             `{"sign": {"hmac": {"key": {"secret": "s"}, "header": "X-Signature", "template": "{method}\n{target}"}}, "scrub": false}`,
	"forward":          `{"forward_url": "https://{host}/in"}`,
	"certificate":      `{"client_certificate": {"secret": "cert"}}`,
}

// TestNoSecretIsRecorded: whatever kind of rule sends a secret, and however the server reflects it, the archive has it in no form, not
// even with credentials and bodies. Header fields that the gateway sets are named, and placeholders stay what they are.
func TestNoSecretIsRecorded(t *testing.T) {
	t.Parallel()
	token := proxytest.TokenFor("KEY")
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, _ *http.Client, _ uint16, _ *proxytest.Recorder) {
		identity := proxytest.IdentityText(t, l.Upstream.Certificate(t, "box.test"))
		l.With(func(c *proxy.Config) {
			c.Tokens, c.Secrets = tokens{}, proxytest.Sources{"s": proxytest.Fixed(canary), "cert": proxytest.Fixed(identity)}
		})
		h2 := strings.Contains(t.Name(), "h2_to")
		_, port := l.HTTPSServer(!strings.Contains(t.Name(), "to_h1"), mirror)
		base := "https://" + proxytest.HostPort(port)
		for what, rule := range kinds {
			l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": `+strings.ReplaceAll(rule, "{host}", proxytest.HostPort(port))+`}`)
			client := l.HTTPClientLater(port, h2)
			r := record(t, l, har.Options{Bodies: har.MaxBodies, Credentials: true})
			n := 0
			send := func(target string, header http.Header, body string) {
				n++
				if header["Authorization"] == nil {
					header.Set("Authorization", "Bearer own")
				}
				proxytest.Send(t, client, "POST", base+target, header, strings.NewReader(body))
			}
			const form, doc = "application/x-www-form-urlencoded", "application/json"
			send("/a?b=c", http.Header{"Content-Type": {"text/plain"}}, "text")
			send("/packed", http.Header{"X-Pack": {"1"}, "Accept-Encoding": {"gzip"}, "Content-Type": {form}}, "a=b")
			send("/failed", http.Header{"X-Status": {"1"}, "Content-Type": {doc}}, "{}")
			if strings.Contains(rule, "placeholders") {
				send("/h?key="+token, http.Header{"X-Key": {token}, "Authorization": {"Bearer " + token}}, "text")
				send("/form", http.Header{"Content-Type": {form}}, "key="+token)
				send("/json", http.Header{"Content-Type": {doc}, "X-Pack": {"1"}}, `{"key": "`+token+`"}`)
			}
			a := r.finish(n)
			r.release()
			text := r.text.String()
			if form := leaks(text, canary); form != "" {
				t.Errorf("%s: the archive has %q", what, form)
			}
			if key := strings.Split(identity, "\n"); strings.Contains(text, key[len(key)-3]) {
				t.Errorf("%s: the archive has the private key", what)
			}
			first := a.Log.Entries[0]
			if first.Request.PostData.Text != "text" || first.Response.Status == 0 || !strings.Contains(first.Response.Content.Text, "text") {
				t.Errorf("%s: %+v", what, first)
			}
			if got := field(first.Request.Headers, "Authorization"); (got == har.SetByGateway) != strings.Contains(rule, "Authorization") && what != "aws" {
				t.Errorf("%s: Authorization is recorded as %q", what, got)
			}
			if strings.Contains(rule, "placeholders") && (strings.Count(text, token) < 5 || a.Log.Entries[5].Request.PostData.Text != `{"key": "`+token+`"}`) {
				t.Errorf("%s: placeholders are missing: %s", what, text)
			}
		}
	})
}

// TestMessagesAreMasked: a secret that a box has learned in a WebSocket message is masked where it sends it afterwards.
func TestMessagesAreMasked(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed(canary)} })
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			mirror(w, r)
			return
		}
		proxytest.EchoWebSocket(w, r)
	})
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"placeholders": {"KEY": {"secret": "s"}}, "scrub": false, "places": ["header", "websocket"]}}`)
	r := record(t, l, har.Options{Bodies: 1000, Credentials: true})
	client := l.HTTPClient(port, false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/ws", &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(ctx, websocket.MessageText, []byte(proxytest.TokenFor("KEY"))); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(ctx); err != nil || !bytes.Contains(got, []byte(canary)) {
		t.Fatalf("%q, %v", got, err)
	}
	proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/"+canary+"?a="+canary, http.Header{"X-Mine": {canary}}, strings.NewReader(canary))
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	a := r.finish(2)
	if form := leaks(r.text.String(), canary); form != "" {
		t.Errorf("the archive has %q: %s", form, r.text.String())
	}
	ws := a.Log.Entries[1]
	if ws.ResourceType != "websocket" || ws.Response.Status != 101 || ws.Request.Method != "GET" || ws.Response.Content.Text != "" {
		t.Errorf("%+v", ws)
	}
}

// TestRotatedSecretsAreMasked: a server reflects the value that was sent before the capture began.
func TestRotatedSecretsAreMasked(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, mirror)
	client := l.HTTPClient(port, false)
	l.Scrub(port)
	proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil)
	r := record(t, l, har.Options{Credentials: true})
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Other": "another value"}, "scrub": false}}`)
	proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/"+proxytest.ScrubbedToken, nil)
	r.finish(1)
	if proxytest.Leak(r.text.String()) != "" {
		t.Errorf("%s", r.text.String())
	}
}

// TestSignaturesAreMasked: a server that refuses a signature reflects it without the rest of its header, as S3 does.
func TestSignaturesAreMasked(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	signatures := make(chan string, 1)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		_, signature, _ := strings.Cut(r.Header.Get("Authorization"), "Signature=")
		signatures <- signature
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte("<Error><SignatureProvided>" + signature + "</SignatureProvided></Error>"))
	})
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": `+kinds["aws"]+`}`)
	r := record(t, l, har.Options{Bodies: 1000, Credentials: true})
	proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/", nil)
	r.finish(1)
	if signature := <-signatures; len(signature) != 64 || strings.Contains(r.text.String(), signature) {
		t.Errorf("the signature %q is recorded: %s", signature, r.text.String())
	}
}

// TestSecretOfAnEarlierRequest: a request that has begun before the capture sends its secret during the capture.
func TestSecretOfAnEarlierRequest(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient, func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed(canary)} })
	_, port := l.HTTPSServer(false, mirror)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": `+kinds["source"]+`}`)
	c := l.DialPair(proxytest.API, port, true)
	const body = `{"key": "else"}`
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nX-Key: %s\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", proxytest.HostPort(port), proxytest.TokenFor("KEY"), len(body))
	in := bufio.NewReader(c)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, " 100 ") {
		t.Fatalf("%q, %v", line, err)
	}
	r := record(t, l, har.Options{Bodies: 1000, Credentials: true})
	if _, err := in.Discard(2); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, body)
	if res, err := http.ReadResponse(in, nil); err != nil || !strings.Contains(proxytest.ReadAll(t, res.Body), canary) {
		t.Fatalf("%v, %v", res, err)
	}
	proxytest.Get(t, l.HTTPClient(port, false), "https://"+proxytest.HostPort(port)+"/"+canary, nil)
	r.finish(1)
	if form := leaks(r.text.String(), canary); form != "" {
		t.Errorf("the archive has %q: %s", form, r.text.String())
	}
}
