package export

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"boxgate/policy/match"
)

const (
	dialTime  = 10 * time.Second
	maxHead   = 64 << 10
	maxAnswer = 64 << 10
	// maxRetryAfter is the longest time for which a collector can make the gateway wait before the next request.
	maxRetryAfter = 5 * time.Minute
)

// answer is the result of a request.
type answer struct {
	err         error         // nil: the batch was accepted
	rejected    uint64        // events of the batch that were not accepted
	noRetry     bool          // do not retry
	maxAttempts int           // maximum number of attempts; 0: no limit
	retryAfter  time.Duration // delay that the collector requests before the next attempt; 0: no delay
}

// newClient returns a client that trusts roots, follows no redirect and uses no proxy.
func newClient(roots *x509.CertPool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: dialTime}).DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    dialTime,
			MaxResponseHeaderBytes: maxHead,
			MaxConnsPerHost:        1,
			IdleConnTimeout:        time.Minute,
			DisableCompression:     true, // a compressed answer could be larger than its bound
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// call is one request to a collector.
type call struct {
	client    *http.Client
	options   *Options
	mediaType string
	body      []byte
	sign      func(context.Context, http.Header) error // adds the headers that depend on the request
	interpret func(res *http.Response, reply []byte) answer
}

// send makes one request.
func (x *Exporter) send(id string, body []byte) answer {
	ctx, cancel := context.WithTimeout(x.ctx, x.times.requestTimeout)
	defer cancel()
	return call{
		client: x.client, options: &x.options, mediaType: "application/json", body: body, interpret: x.protocol.interpret,
		sign: func(ctx context.Context, h http.Header) error { return x.protocol.sign(ctx, h, id, body) },
	}.send(ctx)
}

// send makes the request.
func (r call) send(ctx context.Context) answer {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.options.URL, bytes.NewReader(r.body))
	if err != nil {
		return answer{err: errors.New("the address is not a URL"), noRetry: true}
	}
	req.Header.Set("Content-Type", r.mediaType)
	req.Header.Set("User-Agent", "boxgate")
	if err := r.options.authorize(ctx, req.Header); err != nil {
		return answer{err: err}
	}
	if err := r.sign(ctx, req.Header); err != nil {
		return answer{err: err}
	}
	res, err := r.client.Do(req)
	if err != nil {
		return answer{err: describeError(err)}
	}
	defer res.Body.Close()
	reply, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // the status is the result, even if the body cannot be read
	return r.interpret(res, reply)
}

// authorize sets the headers whose values are secrets.
func (o *Options) authorize(ctx context.Context, h http.Header) error {
	for name, secret := range o.Headers {
		value, err := o.Secret(ctx, secret)
		if err != nil {
			return err
		}
		if err := match.CheckHeaderValue(value.Reveal()); err != nil {
			return fmt.Errorf("secret %q cannot be the header %s: %w", secret, name, err)
		}
		h.Set(name, value.Reveal())
	}
	return nil
}

// describeError returns an error with the reason for a missing answer, without the URL or text from the server.
func describeError(err error) error {
	var (
		op          *net.OpError
		name        *net.DNSError
		certificate *tls.CertificateVerificationError
	)
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("there was no answer before the gateway stopped")
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("there was no answer in time")
	case errors.As(err, &name):
		return fmt.Errorf("the host was not found: %s", name.Err)
	case errors.As(err, &certificate):
		return fmt.Errorf("the certificate is not trusted: %w", certificate.Err)
	case errors.As(err, &op) && op.Op == "dial":
		return fmt.Errorf("no connection: %w", op.Err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op):
		return errors.New("the connection ended without an answer")
	}
	return errors.New("there was no valid HTTP answer")
}

// statusError returns the error for an answer with an unexpected status.
func statusError(res *http.Response) error {
	text := "the answer has status " + strconv.Itoa(res.StatusCode)
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		text += ", a redirect, which is not followed"
	}
	return errors.New(text)
}

// isRetryable reports whether a status means that the collector may accept the same request later.
func isRetryable(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// retryAfter returns the delay of the header Retry-After (RFC 9110, section 10.2.3): a number of seconds, or a date.
func retryAfter(h http.Header) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return 0
}
