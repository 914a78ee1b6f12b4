package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"
)

// Times of [Access.Explain].
const (
	probeTimeout = 3 * time.Second
	// refusalWithin is how long a server may take to refuse the certificate of a client, which in TLS 1.3 follows the handshake.
	refusalWithin = time.Second
)

// Explain adds to an [ErrUnreachable] why each endpoint cannot be used, which the client of etcd does not tell: it retries until its deadline.
// Other errors are returned as they are. It takes up to four seconds.
func (a Access) Explain(ctx context.Context, err error) error {
	if !errors.Is(err, ErrUnreachable) || ctx.Err() != nil {
		return err
	}
	found := make([]error, len(a.Endpoints))
	done := make(chan struct{})
	for i, endpoint := range a.Endpoints {
		go func() {
			if reason := a.probe(ctx, endpoint); reason != nil {
				found[i] = fmt.Errorf("%s: %w", endpoint, reason)
			}
			done <- struct{}{}
		}()
	}
	for range a.Endpoints {
		<-done
	}
	return errors.Join(append([]error{err}, found...)...)
}

// probe connects to an endpoint as the client of etcd does. nil: the connection can be used.
func (a Access) probe(ctx context.Context, endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	network, address := "tcp", u.Host
	if u.Scheme == "unix" {
		network, address = "unix", u.Path
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if u.Scheme != "https" {
		return nil
	}
	config, err := a.tls()
	if err != nil {
		return err
	}
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config.ServerName = u.Hostname()
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return err
	}
	_ = secured.SetReadDeadline(time.Now().Add(refusalWithin))
	if _, err := secured.Read(make([]byte, 1)); err != nil && !isTimeout(err) {
		return err
	}
	return nil
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
