package fidelity

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/internal/testnet"
)

// TestFidelityOldHTTP: clients and servers speak HTTP/1.0, and servers send no length.
func TestFidelityOldHTTP(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/chunks", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "one ")
		_ = http.NewResponseController(w).Flush() // so that it has no Content-Length
		_, _ = fmt.Fprintf(w, "two %s", r.Host)
	})
	for _, r := range []route{overHTTP1, overPlain} {
		out := f.curl(r, "--http1.0 -i", "/chunks")
		if !strings.HasSuffix(out, "\r\n\r\none two "+bothHost) || strings.Contains(strings.ToLower(out), "transfer-encoding") {
			t.Errorf("%s: %q", r.name, out)
		}
	}
	// A manual request, as for testing a server: without Host, but with SNI.
	out := f.run(`(printf 'GET /chunks HTTP/1.0\r\n\r\n'; sleep 1) | openssl s_client -quiet -verify_quiet -connect ` + bothHost + ":443 -servername " + bothHost)
	if !strings.HasSuffix(out, "\r\n\r\none two "+bothHost) {
		t.Errorf("openssl: %q", out)
	}
	for host, response := range map[string]string{
		"raw1.example.com": "HTTP/1.0 200 OK\r\n\r\nuntil the end",
		"raw2.example.com": "HTTP/1.1 200 OK\r\nX: y\r\n\r\nuntil the end",
		"raw3.example.com": "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 13\r\n\r\nuntil the end",
		"raw4.example.com": "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 13\r\n\r\nuntil the end",
	} {
		f.raw(host, func(string) string { return response })
		for _, version := range []string{"--http1.0", "--http1.1", "--http2"} {
			// Two requests: the connection to the gateway is reused where the version allows it.
			out := f.run("curl -sS -w '|' " + version + " https://" + host + "/ https://" + host + "/")
			if out != "until the end|until the end|" {
				t.Errorf("%s %s: %q", host, version, out)
			}
		}
	}
}

// TestFidelityConnectionClose: exactly the connections that either side closes are closed.
func TestFidelityConnectionClose(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/page", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "close" {
			w.Header().Set("Connection", "close")
		}
		_, _ = io.WriteString(w, "page")
	})
	conns := func() int { return len(f.Net.Received(bothHost, testnet.Of(testnet.Connection))) }
	ask := func(c io.ReadWriter, in *bufio.Reader, path, option string) *http.Response {
		t.Helper()
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", path, bothHost, option)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); err != nil || string(body) != "page" {
			t.Fatalf("%q %v", body, err)
		}
		return res
	}
	// The client closes its connections; the connection to the server is reused.
	for range 3 {
		c := f.dialTLS(bothHost, "http/1.1")
		in := bufio.NewReader(c)
		if res := ask(c, in, "/page", "Connection: close\r\n"); !res.Close {
			t.Error("the answer does not say that the connection ends")
		}
		if rest, err := io.ReadAll(in); len(rest) != 0 || err != nil {
			t.Errorf("behind the answer: %q %v", rest, err)
		}
	}
	if n := conns(); n != 1 {
		t.Errorf("%d connections to the server", n)
	}
	// The server closes its connections; the client's stays open.
	c := f.dialTLS(bothHost, "http/1.1")
	in := bufio.NewReader(c)
	before := conns()
	for range 3 {
		if res := ask(c, in, "/page?close", ""); res.Close {
			t.Error("the client's connection ends as well")
		}
	}
	if n := conns() - before; n != 2 {
		t.Errorf("%d further connections to the server for three that it ended, one of them kept from before", n)
	}
}

// TestFidelityEndBeforeTheFirstByte: a client that closes its sending side before sending any data (nc -N) still
// receives the server's first data, on a port without a known protocol, as without the gateway; also through the
// explicit proxy, and where the gateway waits to see which side speaks first.
func TestFidelityEndBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	const host, banner = "raw.example.org", "* OK IMAP4rev1 ready\r\n"
	if err := f.Net.ServeConns(host, 7000, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(io.Discard, c) // until the client has closed its side
		_, _ = io.WriteString(c, banner)
	}); err != nil {
		t.Fatal(err)
	}
	hear := `python3 -c '
import socket, sys, time
for to, late in [("` + host + `", 7000), 0], [("10.200.0.1", 3128), 0], [("` + host + `", 7000), 1]:
    s = socket.create_connection(to, 20)
    f = s.makefile("rb")
    if to[1] == 3128:
        s.sendall(b"CONNECT ` + host + `:7000 HTTP/1.1\r\nHost: ` + host + `:7000\r\n\r\n")
        while f.readline().strip(): pass
    time.sleep(late)
    s.shutdown(socket.SHUT_WR)
    print(f.read())' 2>&1`
	want := strings.Repeat("b'* OK IMAP4rev1 ready\\r\\n'\n", 3)
	if out := f.run(hear); out != want {
		t.Errorf("allowed by name: %q", out)
	}
	spec := harness.Custom("*.example.com", "*.example.org")
	spec["denied_domains"] = []string{"evil.example.org"} // from now on names decide on the port
	f.SetPolicy(f.Box, spec)
	if out := f.run(hear); out != want {
		t.Errorf("where names decide: %q", out)
	}
	f.SetPolicy(f.Box, harness.Custom("*.example.com"))
	if out, _ := f.Sh(f.Box, hear); strings.Contains(out, "IMAP") {
		t.Errorf("not allowed any more: %q", out)
	}
}
