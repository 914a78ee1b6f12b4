package fidelity

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
)

// The hosts of the fidelity tests. A header rule covers *.example.com, so TLS to these hosts is intercepted. TLS to
// tunnelHost is spliced.
const (
	bothHost   = "both.example.com"   // HTTP/2 and HTTP/1.1
	oneHost    = "one.example.com"    // HTTP/1.1 alone
	tunnelHost = "tunnel.example.org" // both; no rule covers it
)

// route is a path from a client in the box to a server, with an HTTP version on each of its two legs.
type route struct {
	name string
	url  string // without the path
	curl string // the options of curl that choose the version
	h2   bool   // the client speaks HTTP/2
}

func (r route) host() string {
	return strings.TrimPrefix(strings.TrimPrefix(r.url, "https://"), "http://")
}

var (
	overHTTP1     = route{"h1", "https://" + bothHost, "--http1.1", false}
	overHTTP2     = route{"h2", "https://" + bothHost, "--http2", true}
	overDowngrade = route{"h2 to h1", "https://" + oneHost, "--http2", true}
	overPlain     = route{"plain", "http://" + bothHost, "--http1.1", false}
	overSplice    = route{"spliced", "https://" + tunnelHost, "--http2", true}

	intercepted = []route{overHTTP1, overHTTP2, overDowngrade}
	everyRoute  = []route{overHTTP1, overHTTP2, overDowngrade, overPlain, overSplice}
)

// fidelity is a box in a world whose servers have handlers set by the test, path by path.
type fidelity struct {
	*harness.Intruder
	pages *sync.Map // path → http.HandlerFunc
}

// newFidelity creates the world, its servers and a box.
func newFidelity(t *testing.T, change func(*config.Config)) *fidelity {
	t.Helper()
	f := fidelityOf(harness.NewWorld(t, change))
	for host, protocols := range map[string][]string{bothHost: nil, oneHost: {"http/1.1"}, tunnelHost: nil} {
		if err := f.Net.ServeHTTP(host, http.HandlerFunc(f.serve), protocols...); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func fidelityOf(w *harness.World) *fidelity {
	w.T.Helper()
	for i, host := range []string{bothHost, oneHost, tunnelHost, "raw1.example.com", "raw2.example.com", "raw3.example.com", "raw4.example.com", "raw.example.org"} {
		if err := w.Net.AddHost(host, "198.51.100."+strconv.Itoa(100+i), "2001:db8:1::1"+strconv.Itoa(100+i)); err != nil {
			w.T.Fatal(err)
		}
	}
	box := w.Create(map[string]any{
		"network_policy": harness.Custom("*.example.com", "*.example.org"),
		"attach_headers": map[string]any{"*.example.com": map[string]string{"X-Key": harness.Canary}},
	})
	return &fidelity{Intruder: w.Intrude(box), pages: &sync.Map{}}
}

// on returns the same for a subtest.
func (f *fidelity) on(t *testing.T) *fidelity { return &fidelity{f.On(t), f.pages} }

// serve answers with the page of the path's first element.
func (f *fidelity) serve(w http.ResponseWriter, r *http.Request) {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	page, ok := f.pages.Load("/" + first)
	if !ok {
		http.NotFound(w, r)
		return
	}
	page.(http.HandlerFunc)(w, r)
}

// page makes the servers answer paths with this first element with h.
func (f *fidelity) page(path string, h http.HandlerFunc) { f.pages.Store(path, h) }

// run runs a line in the box and returns its standard output. The line must succeed.
func (f *fidelity) run(line string) string {
	f.T.Helper()
	out, errs, code := f.runLine(line)
	if code != 0 {
		f.T.Fatalf("%q exited with %d: %s%s", line, code, out, errs)
	}
	return out
}

// runLine runs a line in the box.
func (f *fidelity) runLine(line string) (out, errs string, code int) {
	f.T.Helper()
	ctx, cancel := context.WithTimeout(f.T.Context(), harness.ExecMost)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code, err := f.Client.Exec(ctx, f.Box, api.ExecRequest{Command: []string{"sh", "-c", line}}, &stdout, &stderr)
	if err != nil {
		f.T.Fatalf("exec %q: %v (%s)", line, err, stderr.String())
	}
	return stdout.String(), stderr.String(), code
}

// curl runs curl on a route. The line has its options and ends with the path.
func (f *fidelity) curl(r route, options, path string) string {
	f.T.Helper()
	return f.run("curl -sS --max-time 300 " + r.curl + " " + options + " '" + r.url + path + "'")
}

// program writes a program to the box's home and returns its path there.
func (f *fidelity) program(name, text string) string {
	f.T.Helper()
	path := "/workspace/home/" + name
	f.run("cat >" + path + " <<'END OF PROGRAM'\n" + text + "\nEND OF PROGRAM\n")
	return path
}

// dialTLS opens a TLS connection from the box to a host with Go's client.
func (f *fidelity) dialTLS(host string, alpn ...string) *tls.Conn {
	f.T.Helper()
	c := f.TLS(f.DialHost(host, 443), host, alpn...)
	_ = c.SetDeadline(time.Now().Add(harness.Patience))
	return c
}

// client returns a Go HTTP client in the box, on a route.
func (f *fidelity) client(r route) *http.Client {
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: f.Roots}, DisableCompression: true, Protocols: new(http.Protocols), ExpectContinueTimeout: 20 * time.Second,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return nil, err
			}
			c, err := f.Connect(netip.AddrPortFrom(f.Resolve(host, "ip4"), uint16(n)))
			if err == nil {
				f.T.Cleanup(func() { c.Close() }) // even if a stream is open
			}
			return c, err
		},
	}
	if r == overSplice {
		tr.TLSClientConfig.RootCAs = f.Net.Roots()
	}
	tr.Protocols.SetHTTP1(!r.h2)
	tr.Protocols.SetHTTP2(r.h2)
	return &http.Client{Transport: tr, Timeout: 60 * time.Second}
}

// eachRoute runs a test on every route given.
func (f *fidelity) eachRoute(routes []route, test func(*fidelity, route)) {
	for _, r := range routes {
		f.T.Run(r.name, func(t *testing.T) { test(f.on(t), r) })
	}
}

// memory returns the resident memory of the gateway in bytes, and its peak since the last call of resetPeak.
func (f *fidelity) memory() (now, peak int64) {
	f.T.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.Process.Process.Pid))
	if err != nil {
		f.T.Fatal(err)
	}
	read := func(key string) int64 {
		_, rest, _ := strings.Cut(string(data), "\n"+key+":")
		var kib int64
		if _, err := fmt.Sscan(rest, &kib); err != nil {
			f.T.Fatalf("%s: %v", key, err)
		}
		return kib << 10
	}
	return read("VmRSS"), read("VmHWM")
}

// resetPeak resets the peak (proc(5), clear_refs) and returns the present memory.
func (f *fidelity) resetPeak() int64 {
	f.T.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", f.Process.Process.Pid), []byte("5"), 0); err != nil {
		f.T.Fatal(err)
	}
	now, _ := f.memory()
	return now
}

// TestFidelityClientsOfRSAAlone: clients in a box that accept only RSA certificates.
func TestFidelityClientsOfRSAAlone(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	f.page("/page", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") })
	for _, r := range intercepted {
		for _, options := range []string{"", "--tls-max 1.2 --ciphers ECDHE-RSA-AES128-GCM-SHA256"} {
			if out := f.curl(r, options, "/page"); out != "page" {
				t.Errorf("%s %s: %q", r.name, options, out)
			}
		}
	}
	out := f.run("openssl s_client -brief -verify_return_error -sigalgs rsa_pss_rsae_sha256:RSA+SHA256 -connect " + bothHost + ":443 -servername " + bothHost + " 2>&1 < /dev/null")
	if !strings.Contains(out, "Verification: OK") || !strings.Contains(out, "RSA-PSS") {
		t.Errorf("openssl: %s", out)
	}
}

// The debian image's ping works without CAP_NET_RAW, which boxes do not have: to allowed addresses only.
func TestPing(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	allowed := []string{w.V4("plain.example.com").String(), w.V6("plain.example.com").String()}
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "custom", "allowed_cidrs": []string{allowed[0] + "/32", allowed[1] + "/128"}}})
	for _, addr := range allowed {
		if out := w.MustSh(box, "ping -n -c 1 -W 60 "+addr); !strings.Contains(out, "1 received") {
			t.Errorf("ping %s: %s", addr, out)
		}
	}
	if out, code := w.Sh(box, "ping -n -c 1 -W 60 "+harness.AttackerAt(7)[0].String()); code == 0 || !strings.Contains(out, "Packet filtered") {
		t.Errorf("ping of an address that is not allowed: %d %s", code, out)
	}
}
