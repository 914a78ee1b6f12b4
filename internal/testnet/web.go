package testnet

import (
	"compress/gzip"
	"compress/zlib"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/coder/websocket"
	"github.com/klauspost/compress/zstd"
)

// Echo is the answer of the path /echo: the request as received.
type Echo struct {
	Method  string      `json:"method"`
	Target  string      `json:"target"`
	Host    string      `json:"host"`
	Proto   string      `json:"proto"`
	SNI     string      `json:"sni,omitempty"`
	Remote  string      `json:"remote"`
	Header  http.Header `json:"headers"`
	Trailer http.Header `json:"trailers,omitempty"`
	Body    int64       `json:"body_length"`
	SHA256  string      `json:"body_sha256"`
}

// page is the handler of one path of the web servers. rest is the path after its first element.
type page func(n *servers, w http.ResponseWriter, r *http.Request, rest string)

// pages maps the first path element to its handler.
var pages map[string]page

func init() {
	pages = map[string]page{
		"echo": (*servers).echo, "status": (*servers).status, "sse": (*servers).sse, "bytes": (*servers).bytes, "trailers": (*servers).trailers,
		"ws": (*servers).ws, "slow": (*servers).slow, "redirect": (*servers).redirect, "hints": (*servers).hints, "reflect": (*servers).reflect,
	}
}

// web records a request and answers it.
func (n *servers) web(w http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	remote, _ := netip.ParseAddrPort(r.RemoteAddr)
	e := Received{
		Kind: Request, Addr: addrPort(local), Remote: remote, Proto: r.Proto, Method: r.Method, Host: r.Host, Target: r.RequestURI,
		Header: r.Header.Clone(),
	}
	if r.TLS != nil {
		e.SNI = r.TLS.ServerName
	}
	entry := n.records.add(e)
	r.Body = &countedBody{ReadCloser: r.Body, net: n, entry: entry, request: r}
	if e.Addr.Addr() == metadataV4 {
		n.metadata(w, r)
		return
	}
	name, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if p := pages[name]; p != nil {
		p(n, w, r, rest)
		return
	}
	fmt.Fprintf(w, "%s %s at %s\n", r.Method, r.RequestURI, n.zone.nameOf(e.Addr.Addr()))
}

// countedBody adds the number of bytes read and the trailers to the record of the request.
type countedBody struct {
	io.ReadCloser
	net     *servers
	entry   *Received
	request *http.Request
}

func (b *countedBody) Read(p []byte) (int, error) {
	got, err := b.ReadCloser.Read(p)
	b.net.records.change(b.entry, func(e *Received) {
		e.Body += int64(got)
		if errors.Is(err, io.EOF) {
			e.Trailer = b.request.Trailer.Clone()
		}
	})
	return got, err
}

// echo answers with the request itself after reading its body.
func (n *servers) echo(w http.ResponseWriter, r *http.Request, _ string) {
	hash := sha256.New()
	size, err := io.Copy(hash, r.Body)
	if err != nil {
		n.logf("test internet: body of %s: %v", r.RequestURI, err)
		return
	}
	e := Echo{
		Method: r.Method, Target: r.RequestURI, Host: r.Host, Proto: r.Proto, Remote: r.RemoteAddr, Header: r.Header,
		Trailer: r.Trailer, Body: size, SHA256: hex.EncodeToString(hash.Sum(nil)),
	}
	if r.TLS != nil {
		e.SNI = r.TLS.ServerName
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(e)
}

// status answers with the status code in the path.
func (n *servers) status(w http.ResponseWriter, _ *http.Request, rest string) {
	code, err := strconv.Atoi(rest)
	if err != nil || code < 200 || code > 599 {
		code = http.StatusNotFound
	}
	w.WriteHeader(code)
}

// sse sends an event every 50 ms until the client disconnects.
func (n *servers) sse(w http.ResponseWriter, r *http.Request, _ string) {
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		if _, err := fmt.Fprintf(w, "data: %d\n\n", i); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
	}
}

// bytes sends the number of bytes given in the path, all of them "x".
func (n *servers) bytes(w http.ResponseWriter, _ *http.Request, rest string) {
	size, err := strconv.ParseInt(rest, 10, 64)
	if err != nil || size < 0 {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	chunk := []byte(strings.Repeat("x", 32<<10))
	for size > 0 {
		wrote, err := w.Write(chunk[:min(size, int64(len(chunk)))])
		if err != nil {
			return
		}
		size -= int64(wrote)
	}
}

// trailers answers like gRPC: a body, then trailers.
func (n *servers) trailers(w http.ResponseWriter, r *http.Request, _ string) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	w.Header().Set("Content-Type", "application/grpc")
	_, _ = io.WriteString(w, "body\n")
	_ = http.NewResponseController(w).Flush()
	w.Header().Set("Grpc-Status", "0")
	w.Header().Set("Grpc-Message", "OK")
}

// ws echoes every WebSocket message.
func (n *servers) ws(w http.ResponseWriter, r *http.Request, _ string) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // any origin
	if err != nil {
		n.logf("test internet: websocket: %v", err)
		return
	}
	defer func() { _ = c.CloseNow() }()
	c.SetReadLimit(16 << 20)
	for {
		kind, data, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, data); err != nil {
			return
		}
	}
}

// slow answers after the number of milliseconds given in the path, 1000 by default.
func (n *servers) slow(w http.ResponseWriter, r *http.Request, rest string) {
	wait := time.Second
	if ms, err := strconv.Atoi(rest); err == nil {
		wait = time.Duration(ms) * time.Millisecond
	}
	select {
	case <-r.Context().Done():
	case <-time.After(wait):
		fmt.Fprintln(w, "slow")
	}
}

// redirect sends the client to the query parameter "to".
func (n *servers) redirect(w http.ResponseWriter, r *http.Request, _ string) {
	w.Header().Set("Location", r.URL.Query().Get("to"))
	w.WriteHeader(http.StatusFound)
}

// hints answers with 103, then 200.
func (n *servers) hints(w http.ResponseWriter, _ *http.Request, _ string) {
	w.Header().Set("Link", "</style.css>; rel=preload")
	w.WriteHeader(http.StatusEarlyHints)
	w.Header().Del("Link")
	fmt.Fprintln(w, "after the hints")
}

// FakeCredential is the worthless credential that the metadata host returns.
const FakeCredential = "ASIAFAKEFAKEFAKEFAKE"

// metadata answers like a cloud's metadata service.
func (n *servers) metadata(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "{\"Code\":\"Success\",\"AccessKeyId\":%q,\"SecretAccessKey\":\"fake\",\"Token\":\"fake\"}\n", FakeCredential)
}

// serverLog logs the errors of net/http.
func (n *servers) serverLog() *log.Logger { return log.New(logWriter{n}, "", 0) }

type logWriter struct{ net *servers }

func (w logWriter) Write(p []byte) (int, error) {
	w.net.logf("test internet: %s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// Reflect returns the credential of a request to the client, in every part of a response and in many encodings: in the
// header X-Reflect, in Location, a cookie and a trailer, and line by line in the body. The last path element names the
// content coding (gzip, deflate, br or zstd; any other value means none). The query parameter mib adds that many MiB of
// filler, with the credential after each.
func Reflect(w http.ResponseWriter, r *http.Request) {
	sent := r.Header.Get("Authorization")
	_, token, _ := strings.Cut(sent, " ")
	h := w.Header()
	h.Set("X-Reflect", sent)
	h.Set("Location", "/?token="+url.QueryEscape(token))
	h.Set("Set-Cookie", "token="+base64.StdEncoding.EncodeToString([]byte(token)))
	h.Set("Trailer", "X-Reflect-End")
	coding := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	out := encoder(w, coding)
	if _, plain := out.(plainBody); !plain {
		h.Set("Content-Encoding", coding)
	}
	mib, _ := strconv.Atoi(r.URL.Query().Get("mib"))
	filler := strings.Repeat("0123456789abcdef%41 ~!?#.", 1<<20/25)
	for i := 0; i <= mib; i++ {
		if i > 0 {
			fmt.Fprint(out, i, filler)
		}
		for _, form := range Reflections(token) {
			if _, err := fmt.Fprintf(out, "<%s>\n", form); err != nil {
				return
			}
		}
	}
	_ = out.Close()
	h.Set("X-Reflect-End", sent)
}

func (n *servers) reflect(w http.ResponseWriter, r *http.Request, _ string) { Reflect(w, r) }

// Reflections returns the encodings of a token that servers commonly write.
func Reflections(token string) []string {
	quoted, _ := json.Marshal(token) // a string can always be encoded
	var escaped strings.Builder
	for _, c := range []byte(token) {
		fmt.Fprintf(&escaped, `\u%04x`, c)
	}
	b64 := base64.StdEncoding.EncodeToString
	return []string{
		token, url.QueryEscape(token), url.PathEscape(token), string(quoted), escaped.String(), hex.EncodeToString([]byte(token)),
		b64([]byte(token)), b64([]byte("Bearer " + token)), b64([]byte("u:" + token)), base64.RawURLEncoding.EncodeToString([]byte("." + token + ".")),
	}
}

type plainBody struct{ io.Writer }

func (plainBody) Close() error { return nil }

func encoder(w io.Writer, coding string) io.WriteCloser {
	switch coding {
	case "gzip":
		return gzip.NewWriter(w)
	case "deflate":
		return zlib.NewWriter(w)
	case "br":
		return brotli.NewWriterLevel(w, brotli.BestSpeed)
	case "zstd":
		if z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); err == nil {
			return z
		}
	}
	return plainBody{w}
}
