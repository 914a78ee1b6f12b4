package fidelity

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"boxgate/e2e/harness"
)

// raw answers each HTTP/1.1 request to a host with the bytes returned by answer. An answer that is empty, has no length
// or requests it closes the connection. raw returns the request heads as received.
func (f *fidelity) raw(host string, answer func(head string) string) <-chan string {
	f.T.Helper()
	heads := make(chan string, 1000)
	err := f.Net.ServeConns(host, 443, func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		for {
			var head strings.Builder
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				if head.WriteString(line); line == "\r\n" {
					break
				}
			}
			heads <- head.String()
			text := answer(head.String())
			_, err := io.WriteString(c, text)
			text = strings.ToLower(text)
			if err != nil || !strings.Contains(text, "\r\ncontent-length:") || strings.Contains(text, "\r\nconnection: close") {
				return
			}
		}
	}, "http/1.1")
	if err != nil {
		f.T.Fatal(err)
	}
	return heads
}

// TestFidelityHeadsByteForByte compares sent and received heads, both ways.
func TestFidelityHeadsByteForByte(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	const host = "raw1.example.com"
	response := "HTTP/1.1 200 Very Well\r\nsErVeR: odd/1\r\nSet-Cookie: a=1; Path=/\r\nX-Between: \xe9t\xe9\r\nSet-Cookie: b=2\r\nset-cookie: c=3\r\n" +
		"CONTENT-length: 2\r\nVary: a\r\nVary: b\r\nX-Empty: \r\nDate: yesterday\r\n\r\nok"
	heads := f.raw(host, func(string) string { return response })
	c := f.dialTLS(host)
	request := "GET /x HTTP/1.1\r\naccept: */*\r\nX-UPPER: 1\r\nHost: " + host + "\r\nx-lower: 2\r\nX-Repeated: one\r\nCookie: a=1; b=2\r\n" +
		"X-Repeated: two\r\nuser-AGENT: odd\r\nX-Empty: \r\nX-Latin: \xe9\r\nCookie: c=3\r\nX_Under_Score: 3\r\n"
	if _, err := io.WriteString(c, request+"\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := <-heads, request+"X-Key: "+harness.Canary+"\r\n\r\n"; got != want {
		t.Errorf("the server received\n%q\nwant\n%q", got, want)
	}
	got := make([]byte, len(response))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != response {
		t.Errorf("the client received\n%q\nwant\n%q", got, response)
	}
	// A second client without a User-Agent gets no added fields either.
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := <-heads, "GET / HTTP/1.1\r\nHost: "+host+"\r\nX-Key: "+harness.Canary+"\r\n\r\n"; got != want {
		t.Errorf("the server received\n%q\nwant\n%q", got, want)
	}
}

// TestFidelityFieldsOverHTTP2 sends repeated fields and split cookies with Node's HTTP/2 client.
func TestFidelityFieldsOverHTTP2(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/fields", func(w http.ResponseWriter, r *http.Request) {
		for _, v := range []string{"a=1; Path=/", "b=2", "c=3"} {
			w.Header().Add("Set-Cookie", v)
		}
		_ = json.NewEncoder(w).Encode(r.Header)
	})
	node := "node " + f.program("fields.js", `
const s = require('http2').connect(process.argv[2]);
const r = s.request({':path': '/fields', 'cookie': ['a=1', 'b=2', 'c=3'], 'x-repeated': ['one', 'two'], 'accept': ['text/a', 'text/b'], 'x-empty': ''});
let body = '', cookies; r.setEncoding('utf8');
r.on('response', h => cookies = h['set-cookie']); r.on('data', d => body += d);
r.on('end', () => { console.log(JSON.stringify({sent: JSON.parse(body), cookies})); s.close() });`)
	f.eachRoute([]route{overHTTP2, overDowngrade}, func(f *fidelity, r route) {
		var got struct {
			Sent    http.Header
			Cookies []string
		}
		out := f.run(node + " " + r.url)
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			f.T.Fatal(out, err)
		}
		want := http.Header{"Cookie": {"a=1; b=2; c=3"}, "X-Repeated": {"one", "two"}, "Accept": {"text/a", "text/b"}, "X-Empty": {""}, "X-Key": {harness.Canary}}
		if fmt.Sprint(got.Sent) != fmt.Sprint(want) || fmt.Sprint(got.Cookies) != "[a=1; Path=/ b=2 c=3]" {
			f.T.Errorf("%s", out)
		}
	})
}

// oddTargets are legal, or commonly sent nevertheless.
var oddTargets = []string{
	"//double//slash", "/a/../b", "/./a/.", "/%2f%2F%2e%2E", "/;v=1;w", "?a=b?c", "?", "?a&&b==c&", "/%ff%FE%00", "?q=%zz%", "/a:b@c!$&'()*+,=~",
	"/[x]|y^z{1}\\`\"<>", "/\xc3\xbc", "/" + strings.Repeat("long/", 6<<10), "?" + strings.Repeat("q", 30<<10),
}

// TestFidelityTargets: odd paths and queries pass byte for byte.
func TestFidelityTargets(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	var mu sync.Mutex
	var seen []string
	f.page("/p", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Method+" "+strings.TrimPrefix(r.RequestURI, "/p"))
	})
	f.eachRoute(everyRoute, func(f *fidelity, r route) {
		var config strings.Builder // of curl, without a shell in between
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
		for i, target := range oddTargets {
			if i > 0 {
				config.WriteString("next\n")
			}
			fmt.Fprintf(&config, "silent\nshow-error\ninsecure\ngloboff\n%s\noutput = /dev/null\nwrite-out = \"%%{http_code} \"\nurl = \"%s/\"\nrequest-target = \"/p%s\"\n",
				strings.TrimPrefix(r.curl, "--"), r.url, quoted.Replace(target))
		}
		mu.Lock()
		seen = nil
		mu.Unlock()
		codes := f.run("curl -K " + f.program("odd.curl", config.String()))
		mu.Lock()
		defer mu.Unlock()
		for i, target := range oddTargets {
			if i >= len(seen) || seen[i] != "GET "+target {
				f.T.Fatalf("target %d: want %.80q, got %.80q (%s)", i, target, seen[min(i, len(seen)):], codes)
			}
		}
	})
	heads := f.raw("raw1.example.com", func(string) string { return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" })
	for _, version := range []string{"--http1.1", "--http2"} {
		f.run("curl -sS " + version + " -X OPTIONS --request-target '*' https://raw1.example.com/")
		if got := <-heads; !strings.HasPrefix(got, "OPTIONS * HTTP/1.1\r\n") {
			t.Errorf("%s: %q", version, got)
		}
	}
}

// TestFidelityMethods sends methods old and new, with bodies where they are not expected.
func TestFidelityMethods(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/m", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s|", r.Method, body)
	})
	f.eachRoute([]route{overHTTP1, overHTTP2, overDowngrade, overPlain}, func(f *fidelity, r route) {
		var line, want string
		for _, m := range []string{"PATCH", "DELETE", "PROPFIND", "REPORT", "M-SEARCH", "X-Own_Method", "GET", "OPTIONS", "query"} {
			line += fmt.Sprintf("curl -sS %s -X '%s' -d 'body' %s/m; ", r.curl, m, r.url)
			want += m + " body|"
		}
		if out := f.run(line); out != want {
			f.T.Errorf("got %s, want %s", out, want)
		}
	})
}

// TestFidelityLargeHeads: heads of 60 KiB pass both ways, and larger ones are refused with the specified status.
func TestFidelityLargeHeads(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/head", func(w http.ResponseWriter, r *http.Request) {
		var n int
		_, _ = fmt.Sscan(r.URL.RawQuery, &n)
		if n > 0 {
			w.Header().Set("X-Big", strings.Repeat("b", n))
		}
		fmt.Fprint(w, len(r.Header.Get("X-Big")))
	})
	f.eachRoute([]route{overHTTP1, overHTTP2, overDowngrade, overPlain}, func(f *fidelity, r route) {
		big := func(n int) string {
			return fmt.Sprintf("python3 -c \"print('X-Big: ' + 'a' * %d)\" >/tmp/big; curl -sS %s -H @/tmp/big -D /tmp/head -w ' %%{http_code}' '%s/head?0'", n, r.curl, r.url)
		}
		if out := f.run(big(60 << 10)); out != "61440 200" {
			f.T.Errorf("60 KiB up: %s", out)
		}
		req, _ := http.NewRequest("GET", r.url+"/head?0", nil)
		req.Header.Set("X-Big", strings.Repeat("a", 70<<10)) // more than curl would send over HTTP/2
		res, err := f.client(r).Do(req)
		if err != nil {
			f.T.Fatal(err)
		}
		if _ = res.Body.Close(); res.StatusCode != 431 {
			f.T.Errorf("70 KiB up: %s", res.Status)
		}
		down := func(n int) string {
			return f.curl(r, "-D /tmp/head -w ' %{http_code}' -o /dev/null", fmt.Sprint("/head?", n)) + " " + strings.TrimSpace(f.run("tr -cd b </tmp/head | wc -c"))
		}
		if out := down(60 << 10); !strings.HasPrefix(out, " 200 614") {
			f.T.Errorf("60 KiB down: %s", out)
		}
		if out := down(70 << 10); !strings.HasPrefix(out, " 502 ") {
			f.T.Errorf("70 KiB down: %s", out)
		}
	})
}
