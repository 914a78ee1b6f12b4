package exchange_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/coder/websocket"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/proxytest"
	"boxgate/proxy/scrub"
)

// TestPlaces: in the places of a rule a placeholder becomes the value, escaped as it must be there, and nothing else of the
// request changes.
func TestPlaces(t *testing.T) {
	t.Parallel()
	key, other := proxytest.TokenFor("KEY"), proxytest.TokenFor("OTHER")
	const form, json = "application/x-www-form-urlencoded", "application/json"
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, ", "+proxytest.Everywhere))
		for _, tt := range []struct{ what, target, kind, body, wantTarget, wantBody string }{
			{"query", "/a?x=1&key=" + key + "&y=" + other + "z" + key, "", "", "/a?x=1&key=pa%22ss%5Cw%26o%3Dr%20d%2B%2541%2F&y=from-sourcezpa%22ss%5Cw%26o%3Dr%20d%2B%2541%2F", ""},
			{"form", "/", form, "a=b&key=" + key + "&c=x" + other, "/", "a=b&key=pa%22ss%5Cw%26o%3Dr%20d%2B%2541%2F&c=xfrom-source"},
			{"form with a charset", "/", form + "; charset=utf-8", "key=" + other, "/", "key=from-source"},
			{"JSON", "/", json, `{"a": ["` + key + `", {"b": "x` + other + `y"}], "c": "\"` + other + `"}`, "/", `{"a": ["pa\"ss\\w&o=r d+%41/", {"b": "xfrom-sourcey"}], "c": "\"from-source"}`},
			{"a kind of JSON", "/", "application/vnd.api+json", `["` + other + `"]`, "/", `["from-source"]`},
			{"a JSON string", "/", json, `"` + key + `"`, "/", `"pa\"ss\\w&o=r d+%41/"`},
			{"twice", "/", json, `["` + other + other + `", "` + other + `"]`, "/", `["from-sourcefrom-source", "from-source"]`},
			{"behind a whole escape", "/?a=x%20" + other, json, `["\n` + other + `"]`, "/?a=x%20from-source", `["\nfrom-source"]`},
			{"no token", "/", json, `{"not": json`, "/", `{"not": json`},
		} {
			for how, body := range map[string]io.Reader{"length": strings.NewReader(tt.body), "stream": proxytest.Unsized(tt.body), "bytes": iotest.OneByteReader(strings.NewReader(tt.body))} {
				if tt.body == "" {
					body = nil
				}
				status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+tt.target, http.Header{"Content-Type": {tt.kind}, "X-Key": {other}}, body)
				got, arrived := up.Take()
				if status != 200 || got == nil {
					t.Errorf("%s (%s): %d %s", tt.what, how, status, text)
					continue
				}
				if got.RequestURI != tt.wantTarget || arrived != tt.wantBody || got.Header.Get("X-Key") != "from-source" {
					t.Errorf("%s (%s): %s %q %v", tt.what, how, got.RequestURI, arrived, got.Header)
				}
			}
		}
	})
}

// TestPlacesAreForTheRuleToAllow: where the rule does not say so, and where no value may stand, a token is refused before
// anything is forwarded.
func TestPlacesAreForTheRuleToAllow(t *testing.T) {
	t.Parallel()
	key, foreign := proxytest.TokenFor("KEY"), proxytest.TokenFor("FOREIGN")
	const form, json = "application/x-www-form-urlencoded", "application/json"
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		n := 0
		for _, tt := range []struct{ what, places, target, kind, body string }{
			{"query", "", "/?a=" + key, "", ""},
			{"form", "", "/", form, "a=" + key},
			{"JSON", `, "places": ["header", "form", "query"]`, "/", json, `["` + key + `"]`},
			{"path", ", " + proxytest.Everywhere, "/" + key, "", ""},
			{"name in the query", ", " + proxytest.Everywhere, "/?" + key + "=1", "", ""},
			{"name in the query for some servers", ", " + proxytest.Everywhere, "/?a=1;" + key + "=1", "", ""},
			{"query without a name", ", " + proxytest.Everywhere, "/?" + key, "", ""},
			{"name in a form", ", " + proxytest.Everywhere, "/", form, key + "=1"},
			{"name in a form for some servers", ", " + proxytest.Everywhere, "/", form, "a=1;" + key + "=1"},
			{"form without a name", ", " + proxytest.Everywhere, "/", form, key},
			{"name in JSON", ", " + proxytest.Everywhere, "/", json, `{"a": {"` + key + `": 1}}`},
			{"outside of strings", ", " + proxytest.Everywhere, "/", json, key},
			{"invalid JSON", ", " + proxytest.Everywhere, "/", json, `{"a": "` + key + `"`},
			{"two kinds", ", " + proxytest.Everywhere, "/", "application/json, text/plain", `["` + key + `"]`},
			{"plain text", ", " + proxytest.Everywhere, "/", "text/plain", key},
			{"multipart", ", " + proxytest.Everywhere, "/", "multipart/form-data; boundary=x", "--x\r\nContent-Disposition: form-data; name=a\r\n\r\n" + key + "\r\n--x--\r\n"},
			{"behind half an escape in the query", ", " + proxytest.Everywhere, "/?a=%4" + key, "", ""},
			{"behind half an escape of half an escape", ", " + proxytest.Everywhere, "/?a=%254" + key, "", ""},
			{"behind half an escape in a form", ", " + proxytest.Everywhere, "/", form, "a=%" + key},
			{"behind half an escape in JSON", ", " + proxytest.Everywhere, "/", json, `["\` + key + `"]`},
			{"behind a part of an escape in JSON", ", " + proxytest.Everywhere, "/", json, `["\u000` + key + `"]`},
			{"of another rule", ", " + proxytest.Everywhere, "/", json, `["` + foreign + `"]`},
			{"one good and one bad", ", " + proxytest.Everywhere, "/", json, `["` + key + `", "` + foreign + `"]`},
			{"in the query, of another rule", ", " + proxytest.Everywhere, "/?a=" + foreign, "", ""},
		} {
			l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, tt.places))
			for how, body := range map[string]io.Reader{"length": strings.NewReader(tt.body), "stream": proxytest.Unsized(tt.body)} {
				if tt.body == "" {
					body = nil
				}
				status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+tt.target, http.Header{"Content-Type": {tt.kind}}, body)
				n++
				if got, arrived := up.Take(); got != nil && (strings.Contains(got.RequestURI, "ss") || strings.Contains(arrived, "bxgph_") || strings.Contains(arrived, "ss%")) {
					t.Errorf("%s (%s): the server received %s %q", tt.what, how, got.RequestURI, arrived)
				}
				if status != 403 || !strings.Contains(text, "placeholder_leak") {
					t.Errorf("%s (%s): %d %s", tt.what, how, status, text)
				}
				if e := l.Events.Wait(t, n)[n-1]; e.Verdict != policy.Deny || e.Reason != name.ReasonPlaceholderLeak || len(e.Headers) > 0 {
					t.Errorf("%s (%s): event %+v", tt.what, how, e)
				}
			}
		}
		l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, ", "+proxytest.Everywhere))
		status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/", http.Header{"Content-Type": {json}}, strings.NewReader(`["`+strings.Repeat(key, 65)+`"]`))
		if got, _ := up.Take(); status != 400 || got != nil {
			t.Errorf("too many: %d %s", status, text)
		}
	})
}

// TestLargeBodiesPass: what is too large to be changed is streamed and searched.
func TestLargeBodiesPass(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, ", "+proxytest.Everywhere))
		kind := http.Header{"Content-Type": {"application/json"}, "Expect": {"100-continue"}}
		large := `["` + strings.Repeat("x", 3<<20) + `"]`
		for how, body := range map[string]io.Reader{"length": strings.NewReader(large), "stream": proxytest.Unsized(large)} {
			if status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/", kind, body); status != 200 {
				t.Errorf("%s: %d %s", how, status, text)
			}
			if _, got := up.Take(); got != large {
				t.Errorf("%s: %d bytes arrived", how, len(got))
			}
		}
		edge := `"` + strings.Repeat("x", 1<<20-len(proxytest.TokenFor("KEY"))-2) + proxytest.TokenFor("OTHER") + `"`
		if status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/", kind, strings.NewReader(edge)); status != 200 {
			t.Errorf("the largest: %d %s", status, text)
		}
		if _, got := up.Take(); got != strings.Replace(edge, proxytest.TokenFor("OTHER"), "from-source", 1) {
			t.Errorf("the largest: %d bytes arrived", len(got))
		}
		for what, body := range map[string]string{
			"before the bound": `["` + proxytest.TokenFor("KEY") + strings.Repeat("x", 2<<20) + `"]`,
			"across the bound": `["` + strings.Repeat("x", 1<<20-10) + proxytest.TokenFor("KEY") + strings.Repeat("x", 1<<20) + `"]`,
			"at the end":       `["` + strings.Repeat("x", 2<<20) + proxytest.TokenFor("KEY") + `"]`,
		} {
			for how, body := range map[string]io.Reader{"length": strings.NewReader(body), "stream": proxytest.Unsized(body)} {
				req, _ := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/", body)
				req.Header.Set("Content-Type", "application/json")
				if res, err := client.Do(req); err == nil {
					if res.StatusCode != 403 {
						t.Errorf("%s (%s): %d", what, how, res.StatusCode)
					}
					_ = res.Body.Close()
				}
				if _, got := up.Take(); strings.Contains(got, "bxgph_") && strings.HasSuffix(got, `"]`) {
					t.Errorf("%s (%s): it arrived whole", what, how)
				}
			}
		}
		if held := l.Usages.Of(l.Box).Memory.InUse(); held > 64<<20 {
			t.Errorf("%d bytes are held", held)
		}
	})
}

// TestCompressedBodies: a token in a compressed body is replaced where the rule says so, and else the body does not arrive
// whole.
func TestCompressedBodies(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		plain := `{"a": "` + strings.Repeat("text ", 1000) + `", "key": "` + proxytest.TokenFor("OTHER") + `"}`
		for _, coding := range []string{"gzip", "deflate", "br", "zstd", "gzip, br"} {
			codings, _ := scrub.ParseCodings(coding)
			packed, err := scrub.Encoded(codings, []byte(plain))
			if err != nil {
				t.Fatal(err)
			}
			streamed, asked := false, 0
			ask := func(places string, body []byte) (int, string, string) {
				l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, places))
				var src io.Reader = bytes.NewReader(body)
				if streamed {
					src = iotest.HalfReader(src)
				}
				asked++ // by it a request is told from one before, of which the server may not have seen the end yet
				path := fmt.Sprintf("/%s/%d", strings.ReplaceAll(coding, ", ", "-"), asked)
				status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+path, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {coding}}, src)
				arrived := up.BodyOf(path)
				if !streamed && status != 200 && arrived != "" {
					t.Errorf("%s: %d bytes arrived of a body that was refused", coding, len(arrived))
				}
				return status, text, arrived
			}
			for _, streamed = range []bool{false, true} {
				status, text, arrived := ask(", "+proxytest.Everywhere, packed)
				back, _, err := scrub.Decoded(codings, []byte(arrived), 1<<20, scrub.Limit{Between: 1 << 20, Plain: 1 << 20})
				if want := strings.Replace(plain, proxytest.TokenFor("OTHER"), "from-source", 1); status != 200 || err != nil || string(back) != want {
					t.Errorf("%s: %d %s: %q %v", coding, status, text, back, err)
				}
				if status, text, arrived := ask("", packed); status != 403 || !strings.Contains(text, "placeholder_leak") || len(arrived) == len(packed) {
					t.Errorf("%s, not in the rule: %d %s, %d bytes arrived", coding, status, text, len(arrived))
				}
				clean, _ := scrub.Encoded(codings, bytes.Repeat([]byte("nothing in here. "), 200000))
				for _, places := range []string{"", ", " + proxytest.Everywhere} {
					if status, text, arrived := ask(places, clean); status != 200 || arrived != string(clean) {
						t.Errorf("%s, without a token: %d %s, %d bytes of %d arrived", coding, status, text, len(arrived), len(clean))
					}
					if status, text, arrived := ask(places, packed[:len(packed)-3]); status < 400 || len(arrived) == len(packed)-3 {
						t.Errorf("%s, cut short: %d %s", coding, status, text)
					}
					if status, text, arrived := ask(places, append(bytes.Clone(clean), "more"...)); status < 400 || len(arrived) == len(clean)+4 {
						t.Errorf("%s, with something after it: %d %s", coding, status, text)
					}
				}
			}
		}
		proxytest.Await(t, "the end of all decoders", func() bool { return l.Usages.Of(l.Box).Recodings.Load() == 0 })
	})
}

// TestCompressedBomb: a body that expands without end is refused before long: also one that expands between two codings alone.
func TestCompressedBomb(t *testing.T) {
	t.Parallel()
	bomb, _ := scrub.Encoded([]string{"gzip"}, make([]byte, 96<<20))
	empty, _ := scrub.Encoded([]string{"gzip"}, nil)
	hollow, _ := scrub.Encoded([]string{"br"}, bytes.Repeat(empty, 1<<20))
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		for coding, body := range map[string][]byte{"gzip": bomb, "gzip, br": hollow} {
			for _, places := range []string{"", ", " + proxytest.Everywhere} {
				l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, places))
				status, text := proxytest.Send(t, client, "POST", "https://"+proxytest.HostPort(port)+"/", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {coding}}, bytes.NewReader(body))
				if _, arrived := up.Take(); status != 400 || len(arrived) == len(body) {
					t.Errorf("%s%s: %d %s, %d bytes of %d arrived", coding, places, status, text, len(arrived), len(body))
				}
			}
		}
	})
}

// TestBasicAuthentication: the password of a rule is encoded by the gateway.
func TestBasicAuthentication(t *testing.T) {
	t.Parallel()
	proxytest.EachProtocol(t, func(t *testing.T, l *proxytest.Rig, client *http.Client, port uint16, up *proxytest.Recorder) {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"Authorization": {"secret": "s", "encode": "basic", "user": "x-access-token"}, "X-Literal": {"value": "pass:word", "encode": "basic", "user": "me"}}, "scrub": true}}`)
		status, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/", http.Header{"authorization": {proxytest.Basic("own", "own")}}, nil)
		got, _ := up.Take()
		if status != 200 || got == nil {
			t.Fatalf("%d %s", status, text)
		}
		if a := got.Header["Authorization"]; len(a) != 1 || a[0] != proxytest.Basic("x-access-token", "from-source") || got.Header.Get("X-Literal") != proxytest.Basic("me", "pass:word") {
			t.Errorf("%v", got.Header)
		}
	})
}

// TestPlaceholderInWebSocketMessages: text messages are searched and changed, however they are cut into frames.
func TestPlaceholderInWebSocketMessages(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed("from-source")} })
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(8 << 20)
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, fmt.Appendf(nil, "%d %.40q", len(b), b)) != nil {
				return
			}
		}
	})
	open := func(more string) (*websocket.Conn, context.Context) {
		l.Rules(proxytest.AllowAll, proxytest.JSONRule(t, port, more))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		t.Cleanup(cancel)
		c, res, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/", &websocket.DialOptions{
			HTTPClient: l.HTTPClient(port, false), CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			t.Fatal(err)
		}
		if res.Header.Get("Sec-Websocket-Extensions") != "" {
			t.Errorf("extensions: %v", res.Header)
		}
		t.Cleanup(func() { _ = c.CloseNow() })
		return c, ctx
	}
	c, ctx := open(`, "scrub": false, ` + proxytest.Everywhere)
	large := strings.Repeat("x", 3<<20)
	for _, tt := range []struct{ send, want string }{
		{"plain " + proxytest.TokenFor("OTHER"), `17 "plain from-source"`},
		{`{"k":"` + proxytest.TokenFor("KEY") + `"}`, `28 "{\"k\":\"pa\\\"ss\\\\w&o=r d+%41/\"}"`},
		{"", `0 ""`},
		{large, fmt.Sprintf("%d %.40q", len(large), large)},
		{proxytest.TokenFor("OTHER"), `11 "from-source"`},
	} {
		for _, cut := range []int{len(tt.send) + 1, 7} {
			w, err := c.Writer(ctx, websocket.MessageText)
			if err != nil {
				t.Fatal(err)
			}
			for at := 0; at < len(tt.send); at += cut {
				if cut == 7 && len(tt.send) > 100 { // as frames of their own
					cut = 1 << 16
				}
				if _, err := io.WriteString(w, tt.send[at:min(at+cut, len(tt.send))]); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if _, got, err := c.Read(ctx); err != nil || string(got) != tt.want {
				t.Errorf("%.40q: %q %v, want %q", tt.send, got, err, tt.want)
			}
		}
	}
	for label, try := range map[string]struct {
		places, text string
		kind         websocket.MessageType
	}{
		"binary":          {", " + proxytest.Everywhere, proxytest.TokenFor("KEY"), websocket.MessageBinary},
		"a name in JSON":  {", " + proxytest.Everywhere, `{"` + proxytest.TokenFor("KEY") + `":1}`, websocket.MessageText},
		"of another rule": {", " + proxytest.Everywhere, proxytest.TokenFor("FOREIGN"), websocket.MessageText},
		"not in the rule": {"", proxytest.TokenFor("KEY"), websocket.MessageText},
		"too large":       {", " + proxytest.Everywhere, large + proxytest.TokenFor("KEY"), websocket.MessageText},
		"half an escape":  {", " + proxytest.Everywhere, `{"a":"\u000` + proxytest.TokenFor("KEY") + `"}`, websocket.MessageText},
	} {
		c, ctx := open(try.places)
		_ = c.Write(ctx, try.kind, []byte(try.text))
		if _, got, err := c.Read(ctx); err == nil {
			t.Errorf("%s: %q", label, got)
		}
		proxytest.Await(t, "the event of "+label, func() bool {
			for _, e := range l.Events.Wait(t, 1) {
				if e.Reason == name.ReasonPlaceholderLeak {
					return true
				}
			}
			return false
		})
	}
	c, ctx = open("")
	if err := c.Write(ctx, websocket.MessageText, []byte("bxgph_almost")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(ctx); err != nil || string(got) != `12 "bxgph_almost"` {
		t.Errorf("%q %v", got, err)
	}
	proxytest.Await(t, "the end of all claims", func() bool { return l.Usages.Of(l.Box).Memory.InUse() < 32<<20 })
}

// TestScrubByDefault: a rule with placeholders masks what a server sends back of them, unless it says otherwise.
func TestScrubByDefault(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Key")+" "+r.URL.Query().Get("id"))
	})
	client := l.HTTPClient(port, false)
	for rule, want := range map[string]string{
		`{"placeholders": {"KEY": "the-secret-value"}, "query": {"id": "another-value"}}`:                 "**************** *************",
		`{"placeholders": {"KEY": "the-secret-value"}, "query": {"id": "another-value"}, "scrub": false}`: "the-secret-value another-value",
	} {
		l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": `+rule+`}`)
		if _, text := proxytest.Send(t, client, "GET", "https://"+proxytest.HostPort(port)+"/", http.Header{"X-Key": {proxytest.TokenFor("KEY")}}, nil); text != want {
			t.Errorf("%s: %q", rule, text)
		}
	}
}
