package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"boxgate/policy/name"
)

const (
	maxAnswer   = 256 << 10 // bytes of a body
	maxHead     = 64 << 10  // bytes of a response's head
	tries       = 3         // attempts per request
	firstDelay  = 200 * time.Millisecond
	dialTimeout = 10 * time.Second
)

// Client sends requests to endpoints. Safe for concurrent use.
type Client struct {
	http *http.Client
	hide []name.Secret // masked in server texts, in addition to the secrets of the request
}

// NewClient returns a client that trusts roots; nil: the system's. It uses no proxy and no keep-alive.
func NewClient(roots *x509.CertPool) *Client {
	transport := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		DisableKeepAlives:      true,
		DisableCompression:     true, // a compressed answer could be larger than its bound
		MaxResponseHeaderBytes: maxHead,
	}
	return &Client{http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// WithCA returns a client that trusts only the certificates in a file, or c itself if file is empty.
func (c *Client) WithCA(file string) (*Client, error) {
	if file == "" {
		return c, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, errors.New("its ca_file cannot be read")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, errors.New("its ca_file has no certificate")
	}
	return &Client{http: NewClient(roots).http, hide: c.hide}, nil
}

// WithHidden returns a client that also masks the given values in server texts, and their parts if they are JSON objects: a
// server may quote its earlier answer, or an earlier request.
func (c *Client) WithHidden(known ...name.Secret) *Client {
	hide := slices.Concat(c.hide, known)
	for _, value := range known {
		var parts map[string]any
		if json.Unmarshal([]byte(value.Reveal()), &parts) != nil {
			continue
		}
		for _, part := range parts {
			if text, ok := part.(string); ok {
				hide = append(hide, name.NewSecret(text))
			}
		}
	}
	return &Client{http: c.http, hide: hide}
}

// Request is a request to an endpoint.
type Request struct {
	Method string // POST with a body, else GET
	URL    string
	Header http.Header
	Form   url.Values // sent as the body
	Body   []byte     // sent as the body if there is no form
	// Once disables retries: the server must not receive the request twice.
	Once bool
	// Hide are the secrets in the request, to be masked in the server's texts.
	Hide []name.Secret
}

// Answer is the head of a response.
type Answer struct {
	Status int
	Date   time.Time // the server's clock; zero if unknown
}

// JSON sends a request and decodes the body of a successful response. A request without an answer, or with one that
// invites a retry, is retried twice at most, unless Once is set. A status other than 2xx is an *[Error].
func (c *Client) JSON(ctx context.Context, r Request, into any) (Answer, error) {
	a, body, err := c.Do(ctx, r)
	if err != nil {
		return a, err
	}
	defer clear(body)
	if err := json.Unmarshal(body, into); err != nil {
		return a, errors.New("its answer is not the JSON that was expected") // the decoder's error would quote it
	}
	return a, nil
}

// Do is [Client.JSON] for answers that are not JSON.
func (c *Client) Do(ctx context.Context, r Request) (Answer, []byte, error) {
	delay := firstDelay
	for try := 1; ; try++ {
		a, body, err := c.doOnce(ctx, r)
		if err == nil || r.Once || try == tries || !isTransient(err) {
			return a, body, err
		}
		select {
		case <-time.After(delay + rand.N(delay)):
			delay *= 2
		case <-ctx.Done():
			return a, nil, err
		}
	}
}

// isTransient reports whether a failed request may succeed shortly after. A server that limits the rate is not asked
// again.
func isTransient(err error) bool {
	if refused, ok := errors.AsType[*Error](err); ok {
		return refused.Status >= 500 && refused.RetryAfter == 0
	}
	return errors.Is(err, errNoAnswer)
}

func (c *Client) doOnce(ctx context.Context, r Request) (Answer, []byte, error) {
	req, err := r.build(ctx)
	if err != nil {
		return Answer{}, nil, errors.New("the request cannot be made") // the URL was checked before
	}
	res, err := c.http.Do(req)
	if err != nil {
		return Answer{}, nil, noAnswerError(err)
	}
	defer res.Body.Close()
	a := Answer{Status: res.StatusCode}
	if at, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		a.Date = at
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return a, nil, noAnswerError(err)
	case len(body) > maxAnswer:
		return a, nil, errors.New("its answer is longer than 256 KiB")
	case res.StatusCode/100 != 2:
		r.Hide = append(slices.Clone(r.Hide), c.hide...)
		return a, nil, newRefusal(res, body, r)
	}
	return a, body, nil
}

func (r *Request) build(ctx context.Context) (*http.Request, error) {
	method, body := r.Method, r.Body
	if r.Form != nil {
		body = []byte(r.Form.Encode())
	}
	if method == "" {
		method = http.MethodGet
		if body != nil {
			method = http.MethodPost
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if r.Header != nil {
		req.Header = r.Header.Clone()
	}
	if r.Form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if req.Header.Get("Accept") == "" {
		req.Header.Set("Accept", "application/json")
	}
	req.Header.Set("User-Agent", "boxgate")
	return req, nil
}

var errNoAnswer = errors.New("it cannot be reached")

// noAnswerError returns the error for a request without an answer, from a closed set: the client's errors contain the
// URL, and TLS errors contain text from the server.
func noAnswerError(err error) error {
	unverified, isUnverified := errors.AsType[*tls.CertificateVerificationError](err)
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	switch {
	case isUnverified && unverified != nil:
		return errors.New("its certificate is not valid")
	case isLookup && lookup.IsNotFound:
		return errors.New("there is no such host")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("it did not answer in time")
	}
	return errNoAnswer
}

// CheckURL returns an error if a text cannot be the URL of an endpoint. Without TLS, only the gateway's own host is
// allowed.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return errors.New("is not a URL such as https://login.example.com/token")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("must be without user, query and fragment")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())):
		return errors.New("must begin with https:// (http:// is only for this host, such as http://127.0.0.1:8200)")
	}
	return nil
}

func isLoopback(host string) bool {
	addr := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || addr != nil && addr.IsLoopback()
}
