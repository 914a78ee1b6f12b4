package kube

import (
	"bytes"
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
	"os"
	"strings"
	"time"
)

// The group, version and plural of the resource, in dist/kubernetes/boxgatepolicy.yaml.
const (
	apiVersion    = "boxgate.dev/v1alpha1"
	kind          = "BoxgatePolicy"
	resourcesPath = "/apis/" + apiVersion + "/boxgatepolicies"
)

// Bounds of answers, in bytes.
const (
	mostPage  = 16 << 20 // a page of a list
	mostEvent = 4 << 20  // an event of a watch; etcd stores at most 1.5 MiB
	mostError = 64 << 10 // an error, or a token
)

// answerTime bounds every request except the watch.
const answerTime = time.Minute

// Server is an API server, and the account that the gateway has there.
type Server struct {
	URL       string // https://HOST:PORT
	TokenFile string // the account's bearer token, read for each request because the kubelet renews it
	CAFile    string // PEM, the only roots that are trusted
}

// client calls an API server. Safe for concurrent use.
type client struct {
	server Server
	http   *http.Client
}

// newClient returns a client. It follows no redirects, uses no proxy, and resumes nothing of an earlier connection after a change of
// the roots, since they are read for each connection.
func newClient(s Server) *client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	transport := &http.Transport{
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			roots, err := readRoots(s.CAFile)
			if err != nil {
				return nil, err
			}
			secured := tls.Dialer{NetDialer: dialer, Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
			return secured.DialContext(ctx, network, addr)
		},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New("the API server is called by https alone")
		},
		MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		DisableCompression: true, // so that the bounds are those of memory
	}
	return &client{s, &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func readRoots(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM", path)
	}
	return roots, nil
}

// statusError is an error that the API server answered.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the API server answers %d: %.300q", e.code, e.message)
}

// isStatus reports whether err is the API server's answer of that code.
func isStatus(err error, code int) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && s.code == code
}

// errTooLarge is the error for an answer beyond its bound.
var errTooLarge = errors.New("the answer of the API server is too large")

// do sends a request and returns the body of its answer, which the caller closes. An answer other than 200 is a [statusError].
func (c *client) do(ctx context.Context, method, path string, query url.Values, body any) (io.ReadCloser, error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.server.URL, "/")+path, content)
	if err != nil {
		return nil, err
	}
	token, err := readToken(c.server.TokenFile)
	if err != nil {
		return nil, err
	}
	r.URL.RawQuery = query.Encode()
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "boxgate")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	var status struct {
		Message string `json:"message"`
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, mostError))
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		status.Message = http.StatusText(answer.StatusCode)
	}
	return nil, &statusError{answer.StatusCode, status.Message}
}

// readToken reads the account's token.
func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostError))
	token := strings.TrimSpace(string(text))
	if err != nil || token == "" || strings.ContainsAny(token, "\r\n") {
		return "", errors.Join(fmt.Errorf("%s has no token", path), err)
	}
	return token, nil
}

// read sends a request and returns its answer, which has at most so many bytes; else the error is [errTooLarge].
func (c *client) read(ctx context.Context, method, path string, query url.Values, body any, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answer, err := c.do(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	defer answer.Close()
	data, err := io.ReadAll(io.LimitReader(answer, most+1))
	if err == nil && int64(len(data)) > most {
		err = errTooLarge
	}
	return data, err
}
