package fidelity

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
)

// nodeTrailers sends a body without a length followed by trailers, over HTTP/1.1 or HTTP/2, and prints the answer
// followed by its trailers.
const nodeTrailers = `
const [url, version] = process.argv.slice(2), u = new URL(url);
const done = (body, trailers) => console.log(JSON.stringify({body, trailers}));
if (version === '2') {
  const s = require('http2').connect(u.origin);
  s.on('error', e => { console.error(e); process.exit(1) });
  const r = s.request({':path': u.pathname, ':method': 'POST', 'te': 'trailers', 'trailer': 'x-sent'}, {waitForTrailers: true});
  r.on('wantTrailers', () => r.sendTrailers({'x-sent': 'by node', 'x-key': 'mine'}));
  let body = '', trailers = {};
  r.setEncoding('utf8'); r.on('data', d => body += d); r.on('trailers', t => trailers = {...t});
  r.on('end', () => setImmediate(() => { done(body, trailers); s.close() }));
  r.write('one,'); setImmediate(() => r.end('two'));
} else {
  const r = require(u.protocol === 'http:' ? 'http' : 'https').request(url, {method: 'POST', headers: {'TE': 'trailers', 'Trailer': 'X-Sent'}}, res => {
    let body = ''; res.setEncoding('utf8'); res.on('data', d => body += d);
    res.on('end', () => done(body, res.trailers));
  });
  r.addTrailers({'X-Sent': 'by node', 'X-Key': 'mine'});
  r.write('one,'); setImmediate(() => r.end('two'));
}`

// TestFidelityTrailers sends chunked bodies and trailers both ways.
func TestFidelityTrailers(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/trailers", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Announced")
		fmt.Fprintf(w, "%s %v %d sent=%q key=%q", body, err, r.ContentLength, r.Trailer["X-Sent"], r.Trailer["X-Key"])
		_ = http.NewResponseController(w).Flush()
		w.Header().Set("X-Announced", "yes")
		w.Header().Set(http.TrailerPrefix+"X-Surprise", "yes")
	})
	node := "node " + f.program("trailers.js", nodeTrailers)
	f.eachRoute([]route{overHTTP1, overHTTP2, overDowngrade, overPlain}, func(f *fidelity, r route) {
		version := "1"
		if r.h2 {
			version = "2"
		}
		var got struct {
			Body     string
			Trailers map[string]string
		}
		out := f.run(node + " " + r.url + "/trailers " + version)
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			f.T.Fatalf("%s: %v", out, err)
		}
		want := `one,two <nil> -1 sent=["by node"] key=[]`
		if r == overPlain {
			want = `one,two <nil> -1 sent=["by node"] key=["mine"]`
		}
		if got.Body != want || got.Trailers["x-announced"] != "yes" || got.Trailers["x-surprise"] != "yes" {
			f.T.Errorf("%s", out)
		}
	})
}

// TestFidelityExpect: a client waits for 100 before it sends a body. The server sends it, or refuses the body unread.
func TestFidelityExpect(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/welcome", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	for _, code := range []int{401, 417} {
		f.page(fmt.Sprint("/refuse", code), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close") // the body is not read
			w.WriteHeader(code)
		})
	}
	f.eachRoute([]route{overHTTP1, overPlain}, func(f *fidelity, r route) {
		// --expect100-timeout: curl sends the body only after a 100.
		out := f.curl(r, "--expect100-timeout 50 -H 'Expect: 100-continue' -D - --data-binary 'hello'", "/welcome")
		if !strings.HasPrefix(out, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n") || !strings.HasSuffix(out, "\r\n\r\n5 <nil>") {
			f.T.Errorf("%s", out)
		}
		for _, code := range []int{401, 417} {
			out := f.curl(r, "--expect100-timeout 50 -H 'Expect: 100-continue' -D - -o /dev/null -w '%{http_code} %{size_upload}' --data-binary 'hello'", fmt.Sprint("/refuse", code))
			if strings.Contains(out, " 100 Continue") || !strings.HasSuffix(out, fmt.Sprint(code, " 0")) {
				f.T.Errorf("refused with %d: %q", code, out)
			}
		}
	})
	f.eachRoute([]route{overHTTP2, overDowngrade}, func(f *fidelity, r route) {
		client := f.client(r)
		for path, want := range map[string]bool{"/welcome": true, "/refuse401": false} {
			read := make(chan struct{}, 1)
			body := readerFunc(func(p []byte) (int, error) {
				select {
				case read <- struct{}{}:
				default:
				}
				return copy(p, "hello"), io.EOF
			})
			req, _ := http.NewRequest("POST", r.url+path, body)
			req.Header.Set("Expect", "100-continue")
			res, err := client.Do(req)
			if err != nil {
				f.T.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if sent := len(read) == 1; sent != want || (want && string(text) != "5 <nil>") || (!want && res.StatusCode != 401) {
				f.T.Errorf("%s: body sent %v, %s %q", path, sent, res.Status, text)
			}
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestFidelityEarlyHints: a 103 is forwarded before the final response exists.
func TestFidelityEarlyHints(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	seen := make(chan struct{})
	f.page("/hints", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Link", "</a.css>; rel=preload")
		w.Header().Add("Link", "</b.js>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		select {
		case <-seen: // the client has the hints; now send the rest
		case <-r.Context().Done():
			return
		}
		w.Header().Del("Link")
		w.WriteHeader(http.StatusProcessing)
		fmt.Fprint(w, "final")
	})
	f.eachRoute([]route{overHTTP1, overHTTP2, overDowngrade, overPlain}, func(f *fidelity, r route) {
		var interim []string
		req, _ := http.NewRequest("GET", r.url+"/hints", nil)
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				interim = append(interim, fmt.Sprint(code, h["Link"]))
				if code == 103 {
					seen <- struct{}{}
				}
				return nil
			}}))
		res, err := f.client(r).Do(req)
		if err != nil {
			f.T.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		if got := fmt.Sprint(interim); got != "[103 [</a.css>; rel=preload </b.js>; rel=preload] 102 []]" || string(text) != "final" || res.Header["Link"] != nil {
			f.T.Errorf("%s, then %q %v", got, text, res.Header)
		}
	})
}

// TestFidelityBodiless requests responses without a body that have a Content-Length.
func TestFidelityBodiless(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/thing", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"v1"`)
		switch {
		case r.Header.Get("If-None-Match") == `"v1"`:
			w.WriteHeader(http.StatusNotModified)
		case r.Method == "DELETE":
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Content-Length", "12345")
			w.WriteHeader(200)
			if r.Method != "HEAD" {
				_, _ = w.Write(make([]byte, 12345))
			}
		}
	})
	f.eachRoute(intercepted, func(f *fidelity, r route) {
		// One curl and one connection, so that a wrongly read body would swallow the next response.
		out := f.run(fmt.Sprintf(`curl -sS %[1]s --max-time 60 -w '%%{http_code} %%{size_download} %%{num_connects} %%header{content-length} %%header{etag}\n' -o /dev/null \
-I %[2]s/thing --next -sS %[1]s -w '%%{http_code} %%{size_download} %%{num_connects} %%header{content-length}\n' -o /dev/null -X DELETE %[2]s/thing \
--next -sS %[1]s -w '%%{http_code} %%{size_download} %%{num_connects} %%header{etag}\n' -o /dev/null -H 'If-None-Match: "v1"' %[2]s/thing \
--next -sS %[1]s -w '%%{http_code} %%{size_download} %%{num_connects}\n' -o /dev/null %[2]s/thing`, r.curl, r.url))
		want := "200 0 1 12345 \"v1\"\n204 0 0 \n304 0 0 \"v1\"\n200 12345 0\n"
		if out != want {
			f.T.Errorf("got\n%swant\n%s", out, want)
		}
	})
}

// TestFidelityRanges makes range requests.
func TestFidelityRanges(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	content := bytes.Repeat([]byte("0123456789abcdefghijklmnopq\n"), 4000)[:100_000]
	f.page("/file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "file.bin", time.Unix(1e9, 0), bytes.NewReader(content))
	})
	f.eachRoute(everyRoute, func(f *fidelity, r route) {
		code := "-k -o /dev/null -w '%{http_code} %header{content-range} %{size_download}' "
		if got := f.curl(r, code+"-r 10-19", "/file"); got != "206 bytes 10-19/100000 10" {
			f.T.Error(got)
		}
		if got := f.curl(r, code+"-r 200000-", "/file"); !strings.HasPrefix(got, "416 bytes */100000 ") {
			f.T.Error(got)
		}
		parts := f.curl(r, "-k -i -r 0-9,500-509", "/file")
		harness.Contains(f.T, parts, "multipart/byteranges; boundary=", "Content-Range: bytes 0-9/100000\r\nContent-Type: application/octet-stream\r\n\r\n"+string(content[:10])+"\r\n",
			"Content-Range: bytes 500-509/100000\r\nContent-Type: application/octet-stream\r\n\r\n"+string(content[500:510])+"\r\n")
		// An interrupted download is resumed.
		sum := f.run(fmt.Sprintf("cd /tmp && rm -f part && curl -ksS %[1]s -r 0-49999 -o part %[2]s/file && curl -ksS %[1]s -C - -o part %[2]s/file && openssl dgst -sha256 -r part", r.curl, r.url))
		if want := fmt.Sprintf("%x", sha256.Sum256(content)); !strings.HasPrefix(sum, want) {
			f.T.Errorf("resumed download: %s", sum)
		}
	})
}

// TestFidelityEncodings: compressed bodies pass byte for byte, and the gateway requests no encoding that the client did
// not request.
func TestFidelityEncodings(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(bytes.Repeat([]byte("text "), 10_000))
	_ = z.Close()
	garbage := make([]byte, 5_000)
	_, _ = rand.Read(garbage)
	body := func(encoding string) []byte {
		if encoding == "gzip" {
			return packed.Bytes()
		}
		return garbage // decoding it would fail
	}
	f.page("/packed", func(w http.ResponseWriter, r *http.Request) {
		encoding := strings.TrimPrefix(r.URL.Path, "/packed/")
		w.Header().Set("Content-Encoding", encoding)
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("X-Asked", fmt.Sprintf("%q", r.Header["Accept-Encoding"]))
		sum := sha256.New()
		n, _ := io.Copy(sum, r.Body)
		w.Header().Set("X-Sent", fmt.Sprintf("%d %x %s", n, sum.Sum(nil), r.Header.Get("Content-Encoding")))
		_, _ = w.Write(body(encoding))
	})
	f.eachRoute([]route{overHTTP1, overHTTP2, overDowngrade, overPlain}, func(f *fidelity, r route) {
		var line, want string
		for _, encoding := range []string{"gzip", "br", "zstd", "x-unheard-of"} {
			line += fmt.Sprintf(`curl -sS %[1]s -o packed -w '%%header{content-encoding} %%header{x-asked}\n' %[2]s/packed/%[3]s; openssl dgst -sha256 -r packed
curl -sS %[1]s -o /dev/null -w '%%header{x-sent}\n' -H 'Content-Encoding: %[3]s' --data-binary @packed %[2]s/packed/%[3]s;`, r.curl, r.url, encoding)
			sum := sha256.Sum256(body(encoding))
			want += fmt.Sprintf("%s []\n%x *packed\n%d %x %s\n", encoding, sum, len(body(encoding)), sum, encoding)
		}
		if out := f.run("cd /tmp; " + line); out != want {
			f.T.Errorf("got\n%swant\n%s", out, want)
		}
		if out := f.curl(r, "--compressed", "/packed/gzip"); out != strings.Repeat("text ", 10_000) {
			f.T.Errorf("curl decoded %d bytes", len(out))
		}
	})
}
