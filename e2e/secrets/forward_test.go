package secrets

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/policy"
	"boxgate/policy/name"
)

// forwardProxy is an operator's proxy that answers with the request it received.
type forwardProxy struct {
	mu   sync.Mutex
	last *http.Request
	body string
}

// ServeHTTP implements [http.Handler].
func (p *forwardProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" {
		if c, err := websocket.Accept(w, r, nil); err == nil {
			_ = c.Write(r.Context(), websocket.MessageText, []byte("decided by the proxy"))
			_ = c.Close(websocket.StatusNormalClosure, "")
		}
		return
	}
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	p.last, p.body = r, string(body)
	p.mu.Unlock()
	if strings.Contains(r.URL.Path, "redirect") {
		http.Redirect(w, r, "https://www.example.com/elsewhere", http.StatusFound)
		return
	}
	fmt.Fprint(w, "decided by the proxy\n")
}

// takeRequest returns the request that arrived last, which is forgotten.
func (p *forwardProxy) takeRequest() (*http.Request, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.last
	p.last = nil
	return last, p.body
}

// TestForwardURLFromABox: matching requests go to the operator's proxy, which gets their destination and box from the
// gateway, whatever the box claims. Others go to their server. If the proxy cannot be reached, does not prove its name,
// or is in a protected range, requests are not sent directly.
func TestForwardURLFromABox(t *testing.T) {
	t.Parallel()
	w := harness.NewWorld(t, func(c *config.Config) { c.Proxy.TokenIssuer = "https://gateway.test" })
	proxy := &forwardProxy{}
	for name, addr := range map[string]string{"proxy.example.net": "198.51.100.95", "closed.example.net": "198.51.100.96"} {
		if err := w.Net.AddHost(name, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Net.ServeHTTPSAt("proxy.example.net", 8443, proxy); err != nil {
		t.Fatal(err)
	}
	to := func(path, url string) map[string]any {
		return map[string]any{"match": map[string]any{"path": map[string]string{"prefix": path}}, "forward_url": url}
	}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("api.example.com", "www.example.com"),
		"attach_headers": map[string]any{"api.example.com": []any{
			to("/v1/", "https://proxy.example.net:8443/in/"), to("/closed/", "https://closed.example.net:444"),
			to("/bad/", "https://bad-cert.example.com"), to("/private/", "https://private.example.net"),
			to("/metadata/", "https://metadata.example.net"), to("/unknown/", "https://nowhere.example.net"),
		}},
	})
	for _, way := range []string{"--http1.1", "--http2"} {
		forwards(t, w, box, way, proxy)
		for _, path := range []string{"closed", "bad", "private", "metadata", "unknown"} {
			out := w.MustSh(box, "curl -sS -w ' %{http_code}' "+way+" https://api.example.com/"+path+"/x")
			if !strings.HasSuffix(out, " 502") || strings.Contains(out, "example.net") || strings.Contains(out, "10.0.0.5") || strings.Contains(out, "169.254") {
				t.Errorf("%s %s: %s", way, path, out)
			}
		}
		harness.Contains(t, w.MustSh(box, "curl -sS -w ' %{http_code} %{redirect_url}' "+way+" https://api.example.com/v1/redirect"), " 302 https://www.example.com/elsewhere")
		w.MustSh(box, "curl -sS -f -o /dev/null "+way+" https://api.example.com/other")
	}
	harness.Contains(t, w.MustSh(box, `curl -sS -m 20 --http1.1 -H "Connection: Upgrade" -H "Upgrade: websocket" -H "Sec-WebSocket-Version: 13" `+
		`-H "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==" https://api.example.com/v1/ws -o - | tr -d '\000-\037'`), "decided by the proxy")
	socketOverHTTP2(w, box)
	if out, code := w.GatewayCommand("headers", "set", "--box", box, "www.example.com", "--forward-url", "https://proxy.example.net:8443/cli"); code != 0 {
		t.Fatal(out)
	}
	harness.Contains(t, w.MustSh(box, "curl -sS -f https://www.example.com/x"), "decided by the proxy")
	if r, _ := proxy.takeRequest(); r == nil || r.URL.Path != "/cli/x" || r.Header.Get("Vercel-Forwarded-Host") != "www.example.com" {
		t.Errorf("by the command: the proxy received %+v", r)
	}
	for _, r := range w.Net.Received("api.example.com") {
		if r.Target != "" && r.Target != "/other" || r.Header.Get("Vercel-Sandbox-Oidc-Token") != "" {
			t.Errorf("the server received %+v", r)
		}
	}
	if out, _ := w.Sh(box, "curl -sS -m 20 https://proxy.example.net:8443/"); strings.Contains(out, "decided") {
		t.Error("the box reaches the proxy by itself")
	}
	w.DenialOf(box, policy.StageHTTP, "api.example.com", name.ReasonUnreachable)
	if text := w.LogText(); strings.Contains(text, "eyJ") {
		t.Error("the log shows a token")
	}
}

// socketOverHTTP2 opens a WebSocket over HTTP/2. The proxy sends its message.
func socketOverHTTP2(w *harness.World, box string) {
	w.T.Helper()
	f := w.Intrude(box).Frames("api.example.com")
	f.Send(1, false, harness.Head("api.example.com", harness.Field{":method", "CONNECT"}, harness.Field{":protocol", "websocket"},
		harness.Field{":path", "/v1/ws"}, harness.Field{"sec-websocket-version", "13"})...)
	if got := f.Outcome(1); got != "200" || !strings.Contains(f.Bodies[1], "decided by the proxy") {
		w.T.Errorf("a WebSocket over HTTP/2: %s, %q", got, f.Bodies[1])
	}
}

// forwards sends one request to the proxy, with forged headers of the box, and checks the received ones.
func forwards(t *testing.T, w *harness.World, box, way string, proxy *forwardProxy) {
	t.Helper()
	harness.Contains(t, w.MustSh(box, `curl -sS -f `+way+` -H 'Vercel-Forwarded-Host: evil.test' -H 'vercel_forwarded_path: /evil' `+
		`-H 'VERCEL-SANDBOX-OIDC-TOKEN: forged' -H 'X-Own: kept' -d body 'https://api.example.com/v1/a?b=c'`), "decided by the proxy")
	r, body := proxy.takeRequest()
	if r == nil || body != "body" || r.Method != "POST" || r.Host != "proxy.example.net:8443" || r.URL.RequestURI() != "/in/v1/a?b=c" || r.Header.Get("X-Own") != "kept" {
		t.Fatalf("%s: the proxy received %+v, %q", way, r, body)
	}
	for name, want := range map[string]string{
		"Vercel-Forwarded-Host": "api.example.com", "Vercel-Forwarded-Scheme": "https", "Vercel-Forwarded-Port": "443", "Vercel-Forwarded-Path": "/v1/a?b=c",
	} {
		if got := r.Header.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %s is %q", way, name, got)
		}
	}
	if tokens := r.Header.Values("Vercel-Sandbox-Oidc-Token"); len(tokens) != 1 || len(r.Header["Vercel_forwarded_path"]) > 0 {
		t.Fatalf("%s: tokens %q, %v", way, tokens, r.Header)
	}
	checkToken(t, w, box, r.Header.Get("Vercel-Sandbox-Oidc-Token"))
}

// checkToken verifies a token like the proxy would, with the public keys on the admin listener.
func checkToken(t *testing.T, w *harness.World, box, token string) {
	t.Helper()
	var set jose.JSONWebKeySet
	var keys json.RawMessage
	if err := w.Client.Do(t.Context(), "GET", "/.well-known/jwks.json", nil, &keys); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(keys, &set); err != nil {
		t.Fatal(err)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatalf("%q: %v", token, err)
	}
	var standard jwt.Claims
	var more struct {
		Host string `json:"host"`
	}
	if err := parsed.Claims(set.Key(parsed.Headers[0].KeyID)[0].Key, &standard, &more); err != nil {
		t.Fatal(err)
	}
	expected := jwt.Expected{Issuer: "https://gateway.test", Subject: box, AnyAudience: jwt.Audience{"https://proxy.example.net:8443/in"}}
	if err := standard.ValidateWithLeeway(expected, 2*time.Minute); err != nil || more.Host != "api.example.com" || standard.Expiry.Time().Sub(standard.IssuedAt.Time()) > time.Minute {
		t.Errorf("%+v, %+v: %v", standard, more, err)
	}
}
