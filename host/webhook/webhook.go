// Package webhook makes HTTP requests on behalf of boxes, such as those to webhooks: requests that the gateway sends to a
// URL chosen by a client of the API.
//
// The requests are treated as the box's own traffic: they pass through the explicit proxy, as if the box had connected to
// it. So the box's policy applies to the name, the request and the address, and the protected ranges, the box's header
// rules and its limits apply too; each request is a decision in the log of the box.
package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"boxgate/internal/socket"
	"boxgate/policy"
)

// Proxy is the explicit proxy of the boxes.
type Proxy interface {
	// ServeFor serves a connection as if it came from the box, or refuses it if the box is gone.
	ServeFor(box *policy.Box, tcp *net.TCPConn)
}

const (
	connectTime = 10 * time.Second // for connecting to the proxy, and for each handshake through it
	maxHead     = 64 << 10         // maximum size of a response head in bytes
	maxProblem  = 4 << 10          // maximum size of a refusal's body that is read, in bytes
)

// proxyURL is a placeholder URL of the proxy; the name is never resolved.
var proxyURL = &url.URL{Scheme: "http", Host: "proxy.invalid:3128"}

// Client returns a client whose requests count as the box's. roots must include the box's CA, which signs intercepted
// connections. The client does not follow redirects.
func Client(p Proxy, box *policy.Box, roots *x509.CertPool) *http.Client {
	transport := &http.Transport{
		Proxy:                  http.ProxyURL(proxyURL),
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx, p, box) },
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connectTime,
		MaxResponseHeaderBytes: maxHead,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		OnProxyConnectResponse: refusal,
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// refusal returns the error for a CONNECT request that the proxy refused, with the proxy's reason.
func refusal(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	var why struct{ Title, Detail, Reason string }
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxProblem))
	if err == nil && json.Unmarshal(text, &why) == nil && why.Reason != "" {
		return fmt.Errorf("refused as traffic of the box: %s (%s)", why.Detail, why.Reason)
	}
	return fmt.Errorf("refused as traffic of the box: %s", answer.Status)
}

// connect opens a loopback connection and passes the other end to the proxy.
func connect(ctx context.Context, p Proxy, box *policy.Box) (net.Conn, error) {
	ours, theirs, err := socket.Pair(ctx)
	if err != nil {
		return nil, err
	}
	p.ServeFor(box, theirs)
	return ours, nil
}
