package http2_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"boxgate/audit"
	"boxgate/policy"
	"boxgate/policy/match"
	"boxgate/proxy/proxytest"
	"boxgate/relay/relaytest"
)

// TestHTTP2Injects sends variants of the injected header over HTTP/2, to upstreams of both versions.
func TestHTTP2Injects(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	for _, h2 := range []bool{true, false} {
		_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) {
			var b bytes.Buffer
			_ = r.Header.Write(&b)
			w.Header().Set("X-Proto", r.Proto)
			fmt.Fprintf(w, "%s %s\r\n%s", r.Host, r.RequestURI, b.String())
		})
		l.Policy(proxytest.AllowAll, map[string]map[string]string{proxytest.HostPort(port): {"X-Api-Key": "s3cret"}})
		res, body := proxytest.Get(t, l.HTTPClient(port, true), "https://"+proxytest.HostPort(port)+"/a%2Fb?q=%zz", http.Header{
			"X-Api-Key": {"a", "b"}, "X_api_key": {"c"}, "X_Api-Key": {"d"}, "X-Keep": {"yes"}, "User-Agent": {""}, "Proxy-Authorization": {"e"},
		})
		want := proxytest.HostPort(port) + " /a%2Fb?q=%zz\r\nX-Api-Key: s3cret\r\nX-Keep: yes\r\n"
		if body != want || res.ProtoMajor != 2 || (res.Header.Get("X-Proto") == "HTTP/2.0") != h2 {
			t.Errorf("h2 upstream %v: %s, %s received\n%s\nwant\n%s", h2, res.Proto, res.Header.Get("X-Proto"), body, want)
		}
	}
	e := l.Events.Wait(t, 2)[0]
	if e.Verdict != policy.Allow || e.Action != audit.ActionIntercept || len(e.Headers) != 1 || e.Path != "/a%2Fb" || e.Status != 200 || e.BytesIn == 0 {
		t.Errorf("event %+v", e)
	}
}

// TestTooManyFields has HTTP/2 say the same of more fields than are taken as HTTP/1.1 does; cookies in crumbs are one field.
func TestTooManyFields(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) {})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	fields := http.Header{}
	for i := range 130 {
		fields.Set(fmt.Sprint("X-", i), "y")
	}
	for _, h2 := range []bool{true, false} {
		client := l.HTTPClient(port, h2)
		res, body := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/", fields)
		if res.StatusCode != 400 || !strings.Contains(body, "The request is refused: it has more than 128 fields.") {
			t.Errorf("HTTP/2 %v: %s %s", h2, res.Status, body)
		}
	}
	c := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
	crumbs := []string{":method", "GET", ":scheme", "https", ":authority", proxytest.HostPort(port), ":path", "/"}
	for range 130 {
		crumbs = append(crumbs, "cookie", "a=b")
	}
	if got := c.ask(crumbs...); got != "200" {
		t.Errorf("130 cookies: %s", got)
	}
}

// rawH2 speaks HTTP/2 frame by frame.
type rawH2 struct {
	t      *testing.T
	conn   net.Conn
	framer *http2.Framer
	enc    *hpack.Encoder
	buf    bytes.Buffer
	stream uint32
}

func newRawH2(t *testing.T, c net.Conn) *rawH2 {
	r := &rawH2{t: t, conn: c, framer: http2.NewFramer(c, c), stream: 1}
	r.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	r.enc = hpack.NewEncoder(&r.buf)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := r.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return r
}

// ask sends a request of exactly these fields and returns the status, or the name of the error that ended the stream.
func (r *rawH2) ask(fields ...string) string {
	r.t.Helper()
	r.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		if err := r.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			r.t.Fatal(err)
		}
	}
	id := r.stream
	r.stream += 2
	if err := r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: r.buf.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		r.t.Fatal(err)
	}
	return r.status(id)
}

// status returns the status of a response, or the name of the error that ended its stream.
func (r *rawH2) status(id uint32) string {
	r.t.Helper()
	for {
		f, err := r.framer.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID == id {
				return f.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == id {
				return f.ErrCode.String()
			}
		case *http2.GoAwayFrame:
			return f.ErrCode.String()
		}
	}
}

// TestHTTP2Refusals sends forbidden requests, with a good one in between, and counts the requests that reach the server.
func TestHTTP2Refusals(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var reached atomic.Int32
	_, port := l.HTTPSServer(false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	l.Policy(policy.Spec{Mode: policy.ModeCustom, AllowedDomains: []string{proxytest.API}, Rules: []match.RequestRule{
		{Hosts: []string{proxytest.HostPort(port)}, Paths: []string{"/admin*"}, Action: "deny"},
	}}, proxytest.SecretFor(proxytest.API, port))
	ps := strconv.Itoa(int(port))
	pseudo := func(method, scheme, authority, path string, more ...string) []string {
		return append([]string{":method", method, ":scheme", scheme, ":authority", authority, ":path", path}, more...)
	}
	good := pseudo("GET", "https", proxytest.HostPort(port), "/")
	for name, try := range map[string]struct {
		fields []string
		want   string
	}{
		"another authority":      {pseudo("GET", "https", "evil.example.com:"+ps, "/"), "421"},
		"another port":           {pseudo("GET", "https", proxytest.API+":1", "/"), "421"},
		"no port":                {pseudo("GET", "https", proxytest.API, "/"), "421"},
		"Host differs":           {pseudo("GET", "https", proxytest.HostPort(port), "/", "host", "evil.example.com"), "PROTOCOL_ERROR"},
		"scheme http":            {pseudo("GET", "http", proxytest.HostPort(port), "/"), "400"},
		"TRACE":                  {pseudo("TRACE", "https", proxytest.HostPort(port), "/"), "405"},
		"CONNECT":                {[]string{":method", "CONNECT", ":authority", proxytest.HostPort(port)}, "PROTOCOL_ERROR|405"},
		"denied path":            {pseudo("GET", "https", proxytest.HostPort(port), "/x/../admin"), "403"},
		"CR LF in a value":       {pseudo("GET", "https", proxytest.HostPort(port), "/", "x", "a\r\nTransfer-Encoding: chunked"), "PROTOCOL_ERROR"},
		"CR LF in the path":      {pseudo("GET", "https", proxytest.HostPort(port), "/ HTTP/1.1\r\nX: y"), "PROTOCOL_ERROR|400"},
		"space in the path":      {pseudo("GET", "https", proxytest.HostPort(port), "/ HTTP/1.1"), "400"},
		"space in the method":    {pseudo("GET /x HTTP/1.1", "https", proxytest.HostPort(port), "/"), "400"},
		"fragment":               {pseudo("GET", "https", proxytest.HostPort(port), "/#x"), "400"},
		"transfer-encoding":      {pseudo("GET", "https", proxytest.HostPort(port), "/", "transfer-encoding", "chunked"), "PROTOCOL_ERROR"},
		"transfer_encoding":      {pseudo("GET", "https", proxytest.HostPort(port), "/", "transfer_encoding", "chunked"), "400"},
		"connection":             {pseudo("GET", "https", proxytest.HostPort(port), "/", "connection", "close"), "PROTOCOL_ERROR"},
		"content-length too big": {pseudo("POST", "https", proxytest.HostPort(port), "/", "content-length", "10"), "PROTOCOL_ERROR|400|502"},
		"control byte":           {pseudo("GET", "https", proxytest.HostPort(port), "/", "x", "a\x01"), "PROTOCOL_ERROR"},
		"upper case name":        {pseudo("GET", "https", proxytest.HostPort(port), "/", "X-Y", "z"), "PROTOCOL_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
			if got := c.ask(good...); got != "200" {
				t.Fatalf("good request: %s", got)
			}
			before := reached.Load()
			if got := c.ask(try.fields...); !strings.Contains("|"+try.want+"|", "|"+got+"|") && !strings.Contains(got, try.want) {
				t.Errorf("%s, want %s", got, try.want)
			}
			if reached.Load() != before {
				t.Error("the upstream was reached")
			}
		})
	}
}

func TestHTTP2CarriesTrailersInterimAndStreams(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	for _, h2 := range []bool{true, false} {
		_, port := l.HTTPSServer(h2, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</x>; rel=preload")
			w.WriteHeader(103)
			w.Header().Del("Link")
			w.Header().Set("Alt-Svc", `h3=":443"`)
			w.Header().Set("Trailer", "Grpc-Status")
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %v", b, r.Trailer)
			w.Header().Set("Grpc-Status", "0")
			w.Header().Set(http.TrailerPrefix+"Grpc-Message", "fine")
		})
		l.Policy(proxytest.AllowAll, map[string]map[string]string{proxytest.HostPort(port): {"X-Api-Key": "s3cret"}})
		var hints atomic.Int32
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			if code == 103 && h.Get("Link") != "" {
				hints.Add(1)
			}
			return nil
		}})
		req, err := http.NewRequestWithContext(ctx, "POST", "https://"+proxytest.HostPort(port)+"/", io.NopCloser(strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		req.Trailer = http.Header{"X-Sum": {"7"}, "X_Api_Key": {"mine"}, "X-Api-Key": {"mine"}}
		req.Header.Set("Te", "trailers")
		res, err := l.HTTPClient(port, true).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body := proxytest.ReadAll(t, res.Body)
		if body != "body map[X-Sum:[7]]" {
			t.Errorf("h2 %v: the upstream read %q", h2, body)
		}
		if res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("Grpc-Message") != "fine" || hints.Load() != 1 || res.Header["Alt-Svc"] != nil {
			t.Errorf("h2 %v: trailers %v, %d hints, header %v", h2, res.Trailer, hints.Load(), res.Header)
		}
	}
}

// TestHTTP2PingPong answers each message before the next is sent, as bidirectional gRPC does.
func TestHTTP2PingPong(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			_, _ = w.Write(buf[:n])
			w.(http.Flusher).Flush()
			if err != nil {
				return
			}
		}
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	pr, pw := io.Pipe()
	req, err := http.NewRequest("POST", "https://"+proxytest.HostPort(port)+"/", pr)
	if err != nil {
		t.Fatal(err)
	}
	res, err := l.HTTPClient(port, true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(res.Body)
	for i := range 20 {
		want := fmt.Sprintf("message %d\n", i)
		if _, err := io.WriteString(pw, want); err != nil {
			t.Fatal(err)
		}
		if got, err := r.ReadString('\n'); got != want {
			t.Fatalf("%q, %v", got, err)
		}
	}
	_ = pw.Close()
	if _, err := r.ReadByte(); err != io.EOF {
		t.Error(err)
	}
}

// TestTrailersOnly: a gRPC error is one HEADERS frame that ends the stream.
func TestTrailersOnly(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "12")
		w.Header()["Content-Length"] = nil
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	c := newRawH2(t, l.DialPair(proxytest.API, port, true, "h2"))
	c.buf.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", proxytest.HostPort(port)}, {":path", "/"}} {
		_ = c.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	if err := c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.buf.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := c.framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			if !h.StreamEnded() {
				t.Errorf("the stream does not end with its only HEADERS: %v", h.Fields)
			}
			for _, f := range h.RegularFields() {
				if f.Name == "content-length" {
					t.Error("a Content-Length nobody sent")
				}
			}
			return
		}
	}
}

// TestInjectedFieldsAreNeverIndexed reads the frames an upstream receives.
func TestInjectedFieldsAreNeverIndexed(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{NextProtos: []string{"h2"}, GetCertificate: l.Upstream.ForHello})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	fields := make(chan []hpack.HeaderField, 10)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		framer := http2.NewFramer(c, c)
		var list []hpack.HeaderField
		dec := hpack.NewDecoder(4096, func(f hpack.HeaderField) { list = append(list, f) })
		_ = framer.WriteSettings()
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				return
			}
			h, ok := f.(*http2.HeadersFrame)
			if s, settings := f.(*http2.SettingsFrame); settings && !s.IsAck() {
				_ = framer.WriteSettingsAck()
			}
			block := func(b []byte, last bool, id uint32) {
				_, _ = dec.Write(b)
				if !last {
					return
				}
				_ = dec.Close()
				fields <- list
				list = nil
				var out bytes.Buffer
				_ = hpack.NewEncoder(&out).WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
				_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: out.Bytes(), EndStream: true, EndHeaders: true})
			}
			if ok {
				block(h.HeaderBlockFragment(), h.HeadersEnded(), h.StreamID)
			}
			if c, ok := f.(*http2.ContinuationFrame); ok {
				block(c.HeaderBlockFragment(), c.HeadersEnded(), c.StreamID)
			}
		}
	}()
	port := proxytest.PortOf(t, ln)
	long := strings.Repeat("v", 8000)
	l.Policy(proxytest.AllowAll, map[string]map[string]string{proxytest.HostPort(port): {"Authorization": "Bearer s3cret", "X-Long": long, "X-Tab": "a\tb"}})
	client := l.HTTPClient(port, true)
	for range 3 {
		proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+"/some/path?x", http.Header{"X-Other": {strings.Repeat("o", 20000)}, "Cookie": {"a=b"}})
		got := map[string]hpack.HeaderField{}
		for _, f := range <-fields {
			got[f.Name] = f
		}
		for name, value := range map[string]string{"authorization": "Bearer s3cret", "x-long": long, "x-tab": "a\tb", ":path": "/some/path?x", "x-other": strings.Repeat("o", 20000), "cookie": "a=b"} {
			if f := got[name]; f.Value != value || !f.Sensitive {
				t.Errorf("%s: %d bytes, never indexed %v", name, len(f.Value), f.Sensitive)
			}
		}
	}
}

// TestStreamsShareOneUpstreamConnection starts many requests in parallel.
func TestStreamsShareOneUpstreamConnection(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	var peers sync.Map
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) {
		peers.Store(r.RemoteAddr, true)
		fmt.Fprint(w, r.URL.Path)
	})
	l.Policy(proxytest.AllowAll, proxytest.Intercepted(port))
	client := l.HTTPClient(port, true)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			path := "/" + strconv.Itoa(i)
			if res, got := proxytest.Get(t, client, "https://"+proxytest.HostPort(port)+path, nil); res.StatusCode != 200 || got != path {
				t.Errorf("%s: %d %q", path, res.StatusCode, got)
			}
		})
	}
	all.Wait()
	if got := proxytest.CountOf(&peers); got != 1 {
		t.Errorf("%d upstream connections", got)
	}
}

// TestExtendedConnect opens a WebSocket inside HTTP/2 (RFC 8441) to a server that knows the HTTP/1.1 upgrade alone.
func TestExtendedConnect(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(false, proxytest.EchoWebSocket)
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	//lint:ignore SA1019 net/http's own client refuses the field :protocol
	client, err := (&http2.Transport{}).NewClientConn(l.DialPair(proxytest.API, port, true, "h2"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pr, pw := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, "CONNECT", "https://"+proxytest.HostPort(port)+"/", pr)
	if err != nil {
		t.Fatal(err)
	}
	req.Header[":protocol"] = []string{"websocket"}
	req.Header.Set("Sec-WebSocket-Version", "13")
	res, err := client.RoundTrip(req)
	if err != nil {
		t.Fatal("extended CONNECT is not on offer: ", err)
	}
	if res.StatusCode != 200 {
		t.Fatalf("%s %s", res.Status, proxytest.ReadAll(t, res.Body))
	}
	if _, err := pw.Write([]byte{0x81, 0x82, 0, 0, 0, 0, 'h', 'i'}); err != nil { // a text frame, masked with zeros
		t.Fatal(err)
	}
	want := append([]byte{0x81, 16}, "Bearer s3cret hi"...)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	_ = pw.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	if e := l.Events.Wait(t, 1)[0]; e.Verdict != policy.Allow || e.BytesOut != 8 || e.BytesIn < 18 {
		t.Errorf("event %+v", e)
	}
}

// TestCurl is a client that shares no code with us, over both versions.
func TestCurl(t *testing.T) {
	t.Parallel()
	l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
	_, port := l.HTTPSServer(true, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %d", r.Header.Get("Authorization"), r.Method, len(b))
	})
	l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
	root, upload := l.BoxCA.File(t), filepath.Join(t.TempDir(), "upload")
	if err := os.WriteFile(upload, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	l.Names.SetOthers(proxytest.Loopback)
	through := "::" + l.Listen(netip.AddrPortFrom(proxytest.Loopback, port))
	for _, version := range []string{"--http1.1", "--http2"} {
		for _, args := range [][]string{{"Bearer s3cret GET 0"}, {"Bearer s3cret PUT 3145728", "-T", upload}, {"Bearer s3cret POST 5", "-d", "hello", "-H", "authorization: mine"}} {
			cmd := append([]string{"-sS", "--noproxy", "*", "--max-time", "30", version, "--cacert", root,
				"--connect-to", through, "https://" + proxytest.HostPort(port) + "/"}, args[1:]...)
			out, err := exec.Command("curl", cmd...).CombinedOutput()
			if err != nil || string(out) != args[0] {
				t.Errorf("%s %v: %v: %s", version, args[1:], err, out)
			}
		}
	}
}

// TestSideOfEgressOverHTTP2 walks what holds on every side of the engine for clients of HTTP/2.
func TestSideOfEgressOverHTTP2(t *testing.T) {
	t.Parallel()
	relaytest.RunHTTP2(t, func(t *testing.T, server func(net.Conn, *bufio.Reader)) relaytest.Rig {
		l := proxytest.New(t, proxytest.AllowAll, proxytest.Patient)
		port := l.RawServer(true, server)
		l.Policy(proxytest.AllowAll, proxytest.SecretFor(proxytest.API, port))
		return relaytest.Rig{Host: proxytest.HostPort(port), Dial: func() net.Conn { return l.DialPair(proxytest.API, port, true, "h2") }}
	})
}
