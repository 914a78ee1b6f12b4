// Package errand makes HTTP requests on behalf of boxes, such as those to webhooks: requests that the gateway sends because
// somebody who commands a box asked for it, to a URL of their choice.
//
// They go the way of the box's own traffic: through the explicit proxy, as if the box had connected to it. So whatever holds
// for the box holds for them: its policy for the name, the request and the address that is dialled, the protected ranges,
// its header rules, its limits; and each is a decision in the log of the box.
package errand

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"boxgate/policy"
)

// Proxy is the explicit proxy of the boxes.
type Proxy interface {
	// ServeFor serves a connection as one of the box, or refuses it if the box is gone.
	ServeFor(box *policy.Box, tcp *net.TCPConn)
}

const (
	connectTime = 10 * time.Second // for the connection to the proxy, and for each handshake through it
	maxHead     = 64 << 10         // bytes of an answer's head
	maxProblem  = 4 << 10          // bytes of a refusal that are read
)

// front is the name of the proxy, to which nobody connects by that name.
var front = &url.URL{Scheme: "http", Host: "proxy.invalid:3128"}

// Client returns a client whose requests are those of a box. roots must include the box's CA, by which
// intercepted connections are signed. Redirects are not followed.
func Client(p Proxy, box *policy.Box, roots *x509.CertPool) *http.Client {
	transport := &http.Transport{
		Proxy:                  http.ProxyURL(front),
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

// refusal is the error for a CONNECT that the proxy refused, in its own words.
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

// connect connects to the proxy for a box. Both ends are this process's: an end that another program took is not used.
func connect(ctx context.Context, p Proxy, box *policy.Box) (net.Conn, error) {
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	ours, err := new(net.Dialer).DialContext(ctx, "tcp4", ln.Addr().String())
	if err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	theirs, err := accept(ln, ours.LocalAddr(), deadline)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	p.ServeFor(box, theirs)
	return ours, nil
}

// accept accepts the connection from an address, and closes all others.
func accept(ln *net.TCPListener, from net.Addr, deadline time.Time) (*net.TCPConn, error) {
	if err := ln.SetDeadline(deadline); err != nil {
		return nil, err
	}
	for {
		c, err := ln.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if c.RemoteAddr().String() == from.String() {
			return c, nil
		}
		_ = c.Close()
	}
}
