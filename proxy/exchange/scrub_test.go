package exchange_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/coder/websocket"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/net/http2"

	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/policy/name"
	"boxgate/proxy"
	"boxgate/proxy/exchange"
	"boxgate/proxy/proxytest"
)

// eachScrubbed runs a test over every pair of protocols, with a rule that sets Authorization and asks for scrubbing.
func eachScrubbed(t *testing.T, serve http.HandlerFunc, test func(t *testing.T, l *proxytest.Rig, client *http.Client, at string)) {
	t.Helper()
	for _, v := range []struct {
		name       string
		client, up bool // HTTP/2
	}{{"h1 to h1", false, false}, {"h2 to h2", true, true}, {"h2 to h1", true, false}} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			_, port := l.HTTPSServer(v.up, serve)
			l.Scrub(port)
			test(t, l, l.HTTPClient(port, v.client), "https://"+proxytest.HostPort(port))
		})
	}
}

// packed compresses a response as servers do.
func packed(w io.Writer, coding string) (io.WriteCloser, func() error) {
	switch coding {
	case "gzip":
		z := gzip.NewWriter(w)
		return z, z.Flush
	case "deflate":
		z := zlib.NewWriter(w)
		return z, z.Flush
	case "br":
		z := brotli.NewWriter(w)
		return z, z.Flush
	case "zstd":
		z, err := zstd.NewWriter(w)
		if err != nil {
			panic(err)
		}
		return z, z.Flush
	}
	return nopCloser{w}, func() error { return nil }
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func unpacked(r io.Reader, coding string) (io.Reader, error) {
	switch coding {
	case "gzip":
		return gzip.NewReader(r)
	case "deflate":
		return zlib.NewReader(r)
	case "br":
		return brotli.NewReader(r), nil
	case "zstd":
		return zstd.NewReader(r)
	}
	return r, nil
}

// TestReflectedSecretsAreMasked: in every place of a response, in every form and coding.
func TestReflectedSecretsAreMasked(t *testing.T) {
	t.Parallel()
	forms := proxytest.Reflections(proxytest.ScrubbedToken)
	eachScrubbed(t, func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token != proxytest.ScrubbedToken {
			t.Errorf("received %q", token)
		}
		h := w.Header()
		h.Set("Link", "</"+token+">")
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
		h.Set("Trailer", "X-After")
		h.Set("Location", "/?next="+url.QueryEscape(token))
		h["X-Echo"] = []string{"first", r.Header.Get("Authorization")}
		h.Set("Set-Cookie", "token="+base64.StdEncoding.EncodeToString([]byte(token))+"; Secure")
		coding := r.URL.Query().Get("coding")
		if coding != "" {
			h.Set("Content-Encoding", coding)
		}
		out, _ := packed(w, coding)
		for _, f := range forms {
			fmt.Fprintf(out, "<%s>\n", f)
		}
		_ = out.Close()
		h.Set("X-After", token)
	}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string) {
		for _, coding := range []string{"", "gzip", "deflate", "br", "zstd"} {
			var hints string
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				hints = h.Get("Link")
				return nil
			}})
			req, _ := http.NewRequestWithContext(ctx, "GET", at+"/?coding="+coding, nil)
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(coding, err)
			}
			raw, err := io.ReadAll(res.Body)
			if err != nil {
				t.Fatal(coding, err)
			}
			_ = res.Body.Close()
			plain, err := unpacked(bytes.NewReader(raw), coding)
			if err != nil {
				t.Fatal(coding, err)
			}
			body := proxytest.ReadAll(t, plain)
			var want int
			for _, f := range forms {
				want += len(f) + 3
			}
			if left := proxytest.Leak(body); left != "" || len(body) != want || strings.Count(body, "\n") != len(forms) || !strings.HasPrefix(body, "<"+proxytest.ScrubStars+">\n<****") {
				t.Errorf("%s: %q is left in %s", coding, left, body)
			}
			if got := fmt.Sprint(res.Header, res.Trailer, hints); proxytest.Leak(got) != "" || res.Header["X-Echo"][1] != "Bearer "+proxytest.ScrubStars || res.Trailer.Get("X-After") != proxytest.ScrubStars || hints != "</"+proxytest.ScrubStars+">" {
				t.Errorf("%s: head, trailers and hints are %s", coding, got)
			}
		}
	})
}

// TestOtherResponsesStayAsTheyAre: without a secret in it, and without scrub in the rule, nothing changes.
func TestOtherResponsesStayAsTheyAre(t *testing.T) {
	t.Parallel()
	big := bytes.Repeat([]byte("0123456789abcdef%41\\u0041 YmFzZTY0\n"), 40_000)
	eachScrubbed(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"x"`)
		switch r.URL.Path {
		case "/304":
			w.Header().Set("Content-Encoding", "unknown")
			w.WriteHeader(http.StatusNotModified)
		case "/204":
			w.WriteHeader(http.StatusNoContent)
		case "/empty":
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Length", "0")
		case "/echo":
			fmt.Fprintf(w, "%s%s%s", r.Header.Get("Authorization"), r.Header["Range"], r.Header["Accept-Encoding"])
		default:
			w.Header().Set("Content-Length", fmt.Sprint(len(big)))
			if r.Method != "HEAD" {
				_, _ = w.Write(big)
			}
		}
	}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string) {
		for path, status := range map[string]int{"/304": 304, "/204": 204, "/empty": 200} {
			if res, body := proxytest.Get(t, client, at+path, nil); res.StatusCode != status || body != "" {
				t.Errorf("%s: %d %q", path, res.StatusCode, body)
			}
		}
		res, body := proxytest.Get(t, client, at+"/big", nil)
		if body != string(big) || res.ContentLength != int64(len(big)) || res.Header.Get("ETag") != `"x"` {
			t.Errorf("%d of %d bytes, Content-Length %d, %v", len(body), len(big), res.ContentLength, res.Header)
		}
		res, err := client.Head(at + "/big")
		if err != nil || res.ContentLength != int64(len(big)) {
			t.Errorf("HEAD: %v, %v", res, err)
		}
		u, _ := url.Parse(at)
		l.Rules(proxytest.AllowAll, `{"`+u.Host+`": {"headers": {"Authorization": "Bearer `+proxytest.ScrubbedToken+`"}}}`)
		if _, body := proxytest.Get(t, client, at+"/echo", http.Header{"Range": {"bytes=0-1"}, "Accept-Encoding": {"dcb"}}); body != "Bearer "+proxytest.ScrubbedToken+"[bytes=0-1][dcb]" {
			t.Errorf("without scrub: %s", body)
		}
	})
}

// TestRequestsAreNarrowed: nothing is asked for that could not be looked into.
func TestRequestsAreNarrowed(t *testing.T) {
	t.Parallel()
	eachScrubbed(t, func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Range", "If-Range", "Accept-Encoding", "Grpc-Accept-Encoding", "A-Im", "Sec-Websocket-Extensions", "Grpc-Encoding", "X-Other"} {
			fmt.Fprint(w, name, r.Header[name], " ")
		}
	}, func(t *testing.T, _ *proxytest.Rig, client *http.Client, at string) {
		_, body := proxytest.Get(t, client, at, http.Header{
			"Range": {"bytes=0-5"}, "If-Range": {`"x"`}, "Accept-Encoding": {"dcb, gzip;q=0.5, *"}, "Grpc-Accept-Encoding": {"gzip"}, "A-Im": {"vcdiff"},
			"Sec-Websocket-Extensions": {"permessage-deflate"}, "Grpc-Encoding": {"identity"}, "X-Other": {"stays"},
		})
		if want := "Range[] If-Range[] Accept-Encoding[gzip;q=0.5] Grpc-Accept-Encoding[] A-Im[] Sec-Websocket-Extensions[] Grpc-Encoding[identity] X-Other[stays] "; body != want {
			t.Errorf("received %s", body)
		}
	})
}

// TestUnscrubbableResponsesAreRefused answers with what cannot be looked into.
func TestUnscrubbableResponsesAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status       int
		name, value  string
		alsoForHeads bool
	}{
		{206, "Content-Range", "bytes 0-3/100", true}, {226, "IM", "vcdiff", true}, {200, "Content-Encoding", "compress", false},
		{200, "Content-Encoding", "gzip, gzip, gzip", false}, {404, "Content-Encoding", proxytest.ScrubbedToken, false}, {200, "Grpc-Encoding", "gzip", true},
	} {
		t.Run(c.name+" "+c.value, func(t *testing.T) {
			t.Parallel()
			eachScrubbed(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(c.name, c.value)
				w.WriteHeader(c.status)
				fmt.Fprint(w, proxytest.ScrubbedToken)
			}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string) {
				res, body := proxytest.Get(t, client, at, nil)
				if res.StatusCode != 502 || !strings.Contains(body, `"unscrubbable"`) || proxytest.Leak(body) != "" || res.Header.Get(c.name) != "" {
					t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
				}
				if e := l.Events.Wait(t, 1)[0]; e.Reason != name.ReasonUnscrubbable || e.Verdict != policy.Deny || e.Status != 502 {
					t.Errorf("event %+v", e)
				}
				if res, err := client.Head(at); err != nil || (res.StatusCode == 502) != c.alsoForHeads {
					t.Errorf("HEAD: %v, %v", res, err)
				}
			})
		})
	}
}

// TestBrokenBodiesAreBrokenOff: a compressed body that is cut short, or goes on behind its end, must not look whole.
func TestBrokenBodiesAreBrokenOff(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) []byte{
		"cut":     func(b []byte) []byte { return b[:len(b)-5] },
		"garbage": func(b []byte) []byte { return append(b, "garbage"...) },
		"plain":   func([]byte) []byte { return []byte("not compressed at all") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachScrubbed(t, func(w http.ResponseWriter, r *http.Request) {
				var b bytes.Buffer
				out, _ := packed(&b, "gzip")
				fmt.Fprint(out, strings.Repeat("text ", 1000))
				_ = out.Close()
				w.Header().Set("Content-Encoding", "gzip")
				_, _ = w.Write(damage(b.Bytes()))
			}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string) {
				res, err := client.Get(at)
				if err == nil {
					_, err = io.ReadAll(res.Body)
				}
				if err == nil {
					t.Error("it is handed on as a good response")
				}
				if e := l.Events.Wait(t, 1)[0]; e.Error == "" {
					t.Errorf("event %+v", e)
				}
			})
		})
	}
}

// TestEarlierSecretsStayMasked: a source gives a new value, a rule is replaced, and the server tells the old one.
func TestEarlierSecretsStayMasked(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var served atomic.Int64
	l.With(func(c *proxy.Config) {
		c.Secrets = proxytest.Sources{"s": func(context.Context) (string, error) { return fmt.Sprintf("secret-number-%d", served.Add(1)), nil }}
	})
	var told atomic.Pointer[string]
	told.Store(new(string))
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		now := *told.Load() + " " + strings.Join(r.Header["X-Key"], "") + " " + strings.Join(r.Header["X-Other"], "")
		told.Store(&now)
		fmt.Fprint(w, now)
	})
	client := l.HTTPClient(port, false)
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Key": {"secret": "s", "prefix": "key=", "suffix": ";v1"}}, "scrub": true}}`)
	for range 3 {
		proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", nil)
	}
	l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {"X-Other": "another-secret"}, "placeholders": {"KEY": {"secret": "s"}}, "scrub": true}}`)
	_, body := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{"X-Key": {proxytest.TokenFor("KEY")}})
	if strings.Contains(body, "secret") || strings.Count(body, strings.Repeat("*", 15)) != 4 {
		t.Errorf("%q", body)
	}
}

// TestRecodingsAreLimited takes every place of the box.
func TestRecodingsAreLimited(t *testing.T) {
	t.Parallel()
	eachScrubbed(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		out, _ := packed(w, "gzip")
		fmt.Fprint(out, "text")
		_ = out.Close()
	}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string) {
		taken := &l.Usages.Of(l.Box).Recodings
		for range exchange.MaxRecodings {
			taken.Enter(exchange.MaxRecodings)
		}
		if res, body := proxytest.Get(t, client, at, nil); res.StatusCode != 503 || !strings.Contains(body, `"limit"`) {
			t.Errorf("%d %s", res.StatusCode, body)
		}
		for range exchange.MaxRecodings {
			taken.Leave()
		}
		for range 3 {
			if res, _ := proxytest.Get(t, client, at, nil); res.StatusCode != 200 {
				t.Error(res.Status)
			}
		}
		proxytest.Await(t, "no recoding to be counted", func() bool { return taken.Load() == 0 })
	})
}

// Tests of scrubbing what goes on: streams of events, messages, frames.

// TestScrubbedStreamsAreNotDelayed sends events one by one, each after the one before was seen.
func TestScrubbedStreamsAreNotDelayed(t *testing.T) {
	t.Parallel()
	seen := make(map[string]chan struct{})
	for _, v := range []string{"", "gzip", "br", "zstd"} {
		for _, p := range []string{"h1 to h1", "h2 to h2", "h2 to h1"} {
			seen[v+p] = make(chan struct{})
		}
	}
	eachScrubbed(t, func(w http.ResponseWriter, r *http.Request) {
		coding := r.URL.Query().Get("coding")
		w.Header().Set("Content-Type", "text/event-stream")
		if coding != "" {
			w.Header().Set("Content-Encoding", coding)
		}
		controller := http.NewResponseController(w)
		_ = controller.Flush()
		out, flush := packed(w, coding)
		for i := range 5 {
			select {
			case <-seen[coding+r.URL.Query().Get("name")]:
			case <-r.Context().Done():
				return
			}
			fmt.Fprintf(out, "data: %d %s\n\n", i, proxytest.ScrubbedToken)
			_ = flush()
			_ = controller.Flush()
		}
		_ = out.Close()
	}, func(t *testing.T, _ *proxytest.Rig, client *http.Client, at string) {
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		name = strings.ReplaceAll(name, "_", " ")
		for _, coding := range []string{"", "gzip", "br", "zstd"} {
			res, err := client.Get(at + "/?" + url.Values{"coding": {coding}, "name": {name}}.Encode())
			if err != nil {
				t.Fatal(err)
			}
			seen[coding+name] <- struct{}{} // the head is here
			plain, err := unpacked(res.Body, coding)
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewReader(plain)
			for i := range 5 {
				line, err := lines.ReadString('\n')
				if err != nil || line != fmt.Sprintf("data: %d %s\n", i, proxytest.ScrubStars) {
					t.Fatalf("%s: %q, %v", coding, line, err)
				}
				_, _ = lines.ReadString('\n')
				if i < 4 {
					seen[coding+name] <- struct{}{}
				}
			}
			_ = res.Body.Close()
		}
	})
}

// TestCompressedMessagesAreBrokenOff: the flag of a message says so although nothing was negotiated.
func TestCompressedMessagesAreBrokenOff(t *testing.T) {
	t.Parallel()
	eachScrubbed(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		_, _ = w.Write([]byte("\x01\x00\x00\x00\x03abc"))
	}, func(t *testing.T, l *proxytest.Rig, client *http.Client, at string) {
		res, err := client.Get(at)
		if err == nil {
			_, err = io.ReadAll(res.Body)
		}
		if err == nil {
			t.Error("it is handed on as a good response")
		}
	})
}

// TestReflectedSecretsInWebSockets: frames of the server, over both versions; none is offered compression.
func TestReflectedSecretsInWebSockets(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var offered atomic.Bool
	_, port := l.HTTPSServer(false, func(w http.ResponseWriter, r *http.Request) {
		offered.Store(offered.Load() || r.Header["Sec-Websocket-Extensions"] != nil)
		proxytest.EchoWebSocket(w, r)
	})
	l.Scrub(port)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "wss://"+proxytest.HostPort(port)+"/", &websocket.DialOptions{
		HTTPClient: l.HTTPClient(port, false), CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	c.SetReadLimit(-1)
	for _, size := range []int{1, 125, 70000, 1 << 20} {
		msg := strings.Repeat("s", size)
		if err := c.Write(ctx, websocket.MessageBinary, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(ctx); err != nil || string(got) != "Bearer "+proxytest.ScrubStars+" "+msg {
			t.Fatalf("%d bytes: %.100q %v", size, got, err)
		}
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
	req.Header.Set("Sec-WebSocket-Extensions", "permessage-deflate")
	res, err := client.RoundTrip(req)
	if err != nil || res.StatusCode != 200 {
		t.Fatal(err, res)
	}
	if _, err := pw.Write([]byte{0x81, 0x82, 0, 0, 0, 0, 'h', 'i'}); err != nil {
		t.Fatal(err)
	}
	want := "\x81\x1eBearer " + proxytest.ScrubStars + " hi"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != want {
		t.Errorf("%q %v", got, err)
	}
	if offered.Load() {
		t.Error("an extension was offered")
	}
}

// TestWebSocketExtensionsAreRefused: a server that compresses unasked is not let through.
func TestWebSocketExtensionsAreRefused(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	port := l.RawServer(true, func(c net.Conn, r *bufio.Reader) {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
			_, _ = io.Copy(io.Discard, r)
		}
	})
	l.Scrub(port)
	c := l.DialPair(proxytest.API, port, true)
	res := proxytest.Ask(t, c, bufio.NewReader(c), "GET / HTTP/1.1\r\nHost: "+proxytest.HostPort(port)+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", "GET")
	if body := proxytest.ReadAll(t, res.Body); res.StatusCode != 502 || !strings.Contains(body, "unscrubbable") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// TestAttackSecretOfALaterRequestInAnOpenStream: a box opens a stream of what the server receives, as collectors of requests
// have them, and then sends the secret with another request: for the first time, or after it has changed.
func TestAttackSecretOfALaterRequestInAnOpenStream(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name       string
		client, up bool
	}{{"h1 to h1", false, false}, {"h2 to h2", true, true}, {"h2 to h1", true, false}} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
			l.With(func(c *proxy.Config) { c.Secrets = proxytest.Sources{"s": proxytest.Fixed("placeholder-value-987654")} })
			seen, opened := make(chan string, 10), make(chan struct{})
			_, port := l.HTTPSServer(v.up, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/stream" {
					seen <- r.Header.Get("X-Key") + " " + r.Header.Get("X-Token")
					return
				}
				_ = http.NewResponseController(w).Flush()
				close(opened)
				for range 2 {
					select {
					case what := <-seen:
						_, _ = io.WriteString(w, "received "+what+" .\n")
						_ = http.NewResponseController(w).Flush()
					case <-r.Context().Done():
						return
					}
				}
			})
			rule := func(literal string) {
				l.Rules(proxytest.AllowAll, `{"`+proxytest.HostPort(port)+`": {"headers": {`+literal+`}, "placeholders": {"KEY": {"secret": "s"}}, "scrub": true}}`)
			}
			rule("")
			client := l.HTTPClientLater(port, v.client)
			res, err := client.Get("https://" + proxytest.HostPort(port) + "/stream")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			<-opened
			lines := bufio.NewReader(res.Body)
			for i, want := range []string{"received  ************************ .\n", "received ****************** ************************ .\n"} {
				if i == 1 {
					rule(`"X-Key": "changed-0123456789"`)
				}
				if res, text := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", http.Header{"X-Token": {proxytest.TokenFor("KEY")}}); res.StatusCode != 200 {
					t.Fatalf("%d %s", res.StatusCode, text)
				}
				line, err := lines.ReadString('\n')
				if err != nil || line != want || strings.Contains(line, "value") {
					t.Errorf("the box reads %q %v", line, err)
				}
			}
		})
	}
}

// TestAttackSecretOnAnotherPort: a server keeps the secrets that it is sent, and shows them on other ports of its name: in the
// clear, under a rule that does not scrub, and where requests are only judged. Other names are shown what they hold.
func TestAttackSecretOnAnotherPort(t *testing.T) {
	t.Parallel()
	const literal, sourced = "literal-secret-of-443", "sourced-secret-of-443"
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	l.With(func(c *proxy.Config) {
		c.Secrets = proxytest.Sources{"s": func(context.Context) (string, error) { return sourced, nil }}
	})
	var sent atomic.Pointer[string]
	sent.Store(new(string))
	show := func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("X-Key"); key != "" {
			sent.Store(&key)
		}
		w.Header().Set("X-Kept", *sent.Load())
		fmt.Fprintf(w, "kept %s %s.", *sent.Load(), literal)
	}
	_, keyed := l.HTTPSServer(false, show)
	_, ruled := l.HTTPSServer(false, show)
	_, judged := l.HTTPSServer(true, show)
	_, plain := l.HTTPServer(show)
	spec := proxytest.AllowAll
	spec.Rules = []match.RequestRule{{Hosts: []string{proxytest.HostPort(judged)}, Methods: []string{"PURGE"}, Action: "deny"}}
	l.Rules(spec, fmt.Sprintf(`{%q: {"headers": {"X-Key": {"secret": "s"}, "X-Other": %q}, "scrub": true},
		%q: {"headers": {"X-Plain": "not a secret"}}}`, proxytest.HostPort(keyed), literal, proxytest.HostPort(ruled)))
	masked := func(what, text string) {
		t.Helper()
		if strings.Contains(text, "secret") || !strings.HasPrefix(text, "kept ") {
			t.Errorf("%s: the box reads %q", what, text)
		}
	}
	_, text := proxytest.Get(t, l.HTTPClient(plain, false), "http://"+proxytest.HostPort(plain)+"/", nil)
	masked("in the clear, before it was sent", text)
	_, text = proxytest.Get(t, l.HTTPClient(keyed, false), "https://"+proxytest.HostPort(keyed)+"/", nil)
	masked("on its own port", text)
	if *sent.Load() != sourced {
		t.Fatalf("the server was sent %q", *sent.Load())
	}
	for what, c := range map[string]struct {
		port uint16
		h2   bool
		url  string
	}{"in the clear": {plain, false, "http://"}, "under a rule": {ruled, false, "https://"}, "where requests are judged": {judged, true, "https://"}} {
		resp, text := proxytest.Get(t, l.HTTPClient(c.port, c.h2), c.url+proxytest.HostPort(c.port)+"/", nil)
		masked(what, text)
		if kept := resp.Header.Get("X-Kept"); kept != strings.Repeat("*", len(sourced)) {
			t.Errorf("%s: the field is %q", what, kept)
		}
	}
	_, text = proxytest.Get(t, l.HTTPClient(plain, false), fmt.Sprintf("http://other.example.com:%d/", plain), nil)
	if text != "kept "+sourced+" "+literal+"." {
		t.Errorf("another name: the box reads %q", text)
	}
}
