package ingress

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"boxgate/internal/handshake"
	"boxgate/policy"

	"go.uber.org/zap"
)

// newTransport makes the connections to the boxes. It uses HTTP/1.1 without TLS, as the programs in boxes do.
func (g *Ingress) newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               nil, // proxies in the gateway's environment do not apply to boxes
		DialContext:         g.dial,
		DisableCompression:  true, // pass bodies on unchanged
		MaxIdleConnsPerHost: 32,
		MaxIdleConns:        1024,
		IdleConnTimeout:     90 * time.Second,
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
		ErrorLog:       zap.NewStdLog(g.Log),
		ModifyResponse: modifyResponse,
		ErrorHandler:   g.failed,
	}
}

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
		if claimed(name) || credential(name) {
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

// claimed reports whether a header says who the client is or what it asked for. "_" counts as "-", as in the many
// servers that turn headers into variables.
func claimed(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	switch name {
	case "forwarded", "x-real-ip", "x-client-ip", "client-ip", "true-client-ip", "x-cluster-client-ip", "x-original-forwarded-for", "x-original-host", "x-host", "x-remote-user", "remote-user":
		return true
	}
	return strings.HasPrefix(name, "x-forwarded")
}

// credential reports whether a header can only be a key of the gateway, sent here by mistake.
func credential(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	return name == "x-box-api-key" || name == "proxy-authorization"
}

// setForwarded tells the box the client's address, taken from the connection, in all the headers that servers read.
func setForwarded(pr *httputil.ProxyRequest) {
	h := pr.Out.Header
	pr.SetXForwarded()
	client := h.Get("X-Forwarded-For")
	h.Set("X-Real-Ip", client)
	node := client
	if strings.Contains(client, ":") {
		node = `"[` + client + `]"` // RFC 7239, 6
	}
	h.Set("Forwarded", "for="+node+`;host="`+strings.NewReplacer(`\`, "", `"`, "").Replace(pr.In.Host)+`";proto=`+h.Get("X-Forwarded-Proto"))
}

// cookiePrefix is the prefix of all cookies of the gateway.
const cookiePrefix = "__Host-boxgate"

// stripCookies removes the gateway's cookies. A line without them is kept byte for byte.
func stripCookies(h http.Header) {
	lines := h["Cookie"]
	delete(h, "Cookie")
	for _, line := range lines {
		if !strings.Contains(line, cookiePrefix) {
			h.Add("Cookie", line)
			continue
		}
		var kept []string
		for pair := range strings.SplitSeq(line, ";") {
			if name := strings.TrimSpace(pair); !strings.HasPrefix(name, cookiePrefix) {
				kept = append(kept, name)
			}
		}
		if rest := strings.Join(kept, "; "); rest != "" {
			h.Add("Cookie", rest)
		}
	}
}

// modifyResponse keeps a box from affecting other hosts: cookies stay on its own host, and browsers are not sent to
// another port of the gateway's name. A 101 that does not complete the handshake of a WebSocket is an error.
func modifyResponse(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		if err := handshake.Verify(resp.Request.Header.Values, resp.Header.Values); err != nil {
			return err
		}
	}
	resp.Header.Del("Alt-Svc")
	cookies := resp.Header["Set-Cookie"]
	delete(resp.Header, "Set-Cookie")
	for _, c := range cookies {
		if !strings.HasPrefix(strings.TrimSpace(c), cookiePrefix) {
			resp.Header.Add("Set-Cookie", withoutDomain(c))
		}
	}
	return nil
}

// withoutDomain removes the Domain attribute from a cookie: with it a box could set cookies for the URLs of all others.
func withoutDomain(cookie string) string {
	parts := strings.Split(cookie, ";")
	kept := parts[:1]
	for _, attribute := range parts[1:] {
		name, _, _ := strings.Cut(attribute, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "Domain") {
			kept = append(kept, attribute)
		}
	}
	return strings.Join(kept, ";")
}

// failed answers when the box could not be reached or closed the connection before its answer.
func (g *Ingress) failed(_ http.ResponseWriter, r *http.Request, err error) {
	v, ok := r.Context().Value(visitKey{}).(*visit)
	if !ok {
		return
	}
	switch {
	case errors.Is(context.Cause(r.Context()), errCut):
		v.event.Error = errCut.Error()
		v.w.Header().Set("Connection", "close") // its deadlines have passed
		v.refuse(http.StatusUnauthorized, policy.ReasonURLAuth, "The public URL has just changed.")
	case r.Context().Err() != nil:
		v.event.Error = "the client disconnected"
		panic(http.ErrAbortHandler)
	default:
		v.unavailable(err)
	}
}
