package ingress

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"time"

	"boxgate/internal/buffers"

	"go.uber.org/zap"
)

// newTransport makes the connections to the boxes. It uses HTTP/1.1 without TLS, as the programs in boxes do.
func (g *Ingress) newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               nil, // proxies in the gateway's environment do not apply to boxes
		DialContext:         g.dial,
		DisableCompression:  true, // pass bodies on unchanged
		MaxIdleConnsPerHost: idleMax,
		MaxIdleConns:        idleAll,
		IdleConnTimeout:     idleTime,
		// A server in a box may send 100 (Continue) late or never.
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 1 << 20,
	}
}

// dial connects to the box of the request that the transport dials for. The address passed by the transport is only the
// key of its pool.
func (g *Ingress) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	v, ok := ctx.Value(visitKey{}).(*visit)
	if !ok {
		return nil, errors.New("ingress: a dial outside of a request")
	}
	ctx, cancel := context.WithTimeout(ctx, g.DialTimeout)
	defer cancel()
	return g.Dial(ctx, v.target)
}

func (g *Ingress) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      g.transport,
		FlushInterval:  -1, // everything streams
		BufferPool:     bodies{},
		ErrorLog:       zap.NewStdLog(g.Log),
		ModifyResponse: modifyResponse,
		ErrorHandler:   g.failed,
	}
}

// bodies are the buffers for bodies over HTTP/2.
type bodies struct{}

var bodyBuffers = buffers.NewPool(32 << 10)

// Get implements httputil.BufferPool.
func (bodies) Get() []byte { return *bodyBuffers.Get() }

// Put implements httputil.BufferPool.
func (bodies) Put(b []byte) { bodyBuffers.Put(&b) }

// rewrite prepares the request for the box. Hop-by-hop headers, and those named by Connection, have already been
// removed, so the client cannot remove anything that is set here.
func rewrite(pr *httputil.ProxyRequest) {
	v, ok := pr.In.Context().Value(visitKey{}).(*visit)
	if !ok {
		panic("ingress: a request without a visit") // ends this request alone
	}
	out := pr.Out
	out.URL.Scheme = "http"
	// The key of the connection pool: connections are never shared between URLs, nor between two incarnations of one.
	out.URL.Host = poolKey(v.target)
	out.URL.RawQuery = pr.In.URL.RawQuery // unchanged; ReverseProxy drops what it cannot parse
	out.Host = pr.In.Host
	out.Trailer = nil // a trailer could repeat any header that is removed below
	for name := range out.Header {
		if claimed(name) || credentialOf(name) {
			delete(out.Header, name)
		}
	}
	if !v.target.Auth.open() {
		out.Header.Del("Authorization")
	}
	stripCookies(out.Header)
	setForwarded(pr)
}

// poolKey is a host name that stands for one incarnation of one URL.
func poolKey(t Target) string {
	sum := sha256.Sum256([]byte(t.ID + "\x00" + string(t.Box) + "\x00" + t.Addr.String()))
	return hex.EncodeToString(sum[:16]) + ".url.invalid:80"
}

// setForwarded tells the box who the client is, as appendForwarded does.
func setForwarded(pr *httputil.ProxyRequest) {
	h := pr.Out.Header
	pr.SetXForwarded()
	client := h.Get("X-Forwarded-For")
	h.Set("X-Real-Ip", client)
	h.Set("Forwarded", string(appendForwardedValue(nil, client, pr.In.Host, h.Get("X-Forwarded-Proto"))))
}

// stripCookies removes the gateway's cookies.
func stripCookies(h http.Header) {
	lines := h["Cookie"]
	delete(h, "Cookie")
	for _, line := range lines {
		if kept := withoutOwnCookies(line); kept != "" {
			h.Add("Cookie", kept)
		}
	}
}

// modifyResponse keeps a box from affecting other hosts: cookies stay on its own host, and browsers are not sent to
// another port of the gateway's name. HTTP/2 has no upgrades.
func modifyResponse(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return errProtocol
	}
	resp.Header.Del("Alt-Svc")
	cookies := resp.Header["Set-Cookie"]
	delete(resp.Header, "Set-Cookie")
	for _, c := range cookies {
		if ownHost(&c) {
			resp.Header.Add("Set-Cookie", c)
		}
	}
	return nil
}
