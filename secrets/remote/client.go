package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"boxgate/audit"
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

// Error is a refusal by a server. Its text contains the status and a code from a closed set, and no other text from the
// server.
type Error struct {
	Status     int
	Code       string        // such as "invalid_grant"; "" if missing or unknown
	RetryAfter time.Duration // minimum delay requested by the server; 0: no request
	ServerText string        // text from the server, masked; only for the log
	Gone       bool          // the secret was revoked or deleted, as opposed to unavailable
	// Skew is how far the server's clock is ahead of the gateway's, if that may be the reason.
	Skew time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	text := "it answered with status " + strconv.Itoa(e.Status)
	switch {
	case e.Status >= 300 && e.Status < 400:
		text += ", a redirect, which is not followed"
	case e.Status == http.StatusTooManyRequests && e.RetryAfter > 0:
		text += ", to ask again in " + e.RetryAfter.String()
	}
	if e.Code != "" {
		text += " (" + e.Code + ")"
	}
	switch {
	case e.Skew > 0:
		text += "; the gateway's clock is " + e.Skew.String() + " behind the server's"
	case e.Skew < 0:
		text += "; the gateway's clock is " + (-e.Skew).String() + " ahead of the server's"
	}
	return text
}

// IsGone reports whether the error means that the secret was revoked or deleted.
func IsGone(err error) bool {
	refused, ok := errors.AsType[*Error](err)
	return ok && refused.Gone || errors.Is(err, ErrGone)
}

// ErrGone is returned when an answer means that the secret no longer exists.
var ErrGone = errors.New("it reports that the secret is deleted")

// ErrExpired is returned when a server issued a token that has already expired.
var ErrExpired = errors.New("it answered with a token that has already expired")

// ErrAnswer returns the error for an answer that lacks something.
func ErrAnswer(lacks string) error { return fmt.Errorf("its answer has no %s", lacks) }

// maxRetryAfter bounds the delay that a server can request.
const maxRetryAfter = 15 * time.Minute

// retryAfter parses the header Retry-After, in seconds or as a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text == "" {
		return 0
	}
	d := time.Duration(0)
	if n, err := strconv.Atoi(text); err == nil {
		d = time.Duration(min(max(n, 0), int(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		d = at.Sub(now).Round(time.Second)
	}
	return min(max(d, 0), maxRetryAfter)
}

// codes are the error codes that are shown: the codes of OAuth 2.0 (RFC 6749, section 5.2), AWS, Google and GitHub that
// help an operator. Other codes are not shown, because a server might put a secret there.
var codes = func() map[string]bool {
	set := map[string]bool{}
	for _, c := range strings.Fields(`
		invalid_request invalid_client invalid_grant unauthorized_client unsupported_grant_type invalid_scope invalid_target
		access_denied server_error temporarily_unavailable slow_down interaction_required invalid_resource
		AccessDenied AccessDeniedException ExpiredToken ExpiredTokenException InvalidClientTokenId SignatureDoesNotMatch
		UnrecognizedClientException IncompleteSignature MissingAuthenticationToken InvalidIdentityToken RegionDisabledException
		PackedPolicyTooLarge MalformedPolicyDocument ValidationError ValidationException Throttling ThrottlingException
		ResourceNotFoundException InvalidRequestException InvalidParameterException DecryptionFailure InternalServiceError
		NOT_FOUND PERMISSION_DENIED UNAUTHENTICATED FAILED_PRECONDITION RESOURCE_EXHAUSTED INVALID_ARGUMENT UNAVAILABLE INTERNAL`) {
		set[c] = true
	}
	return set
}()

// maxServerText is the maximum number of bytes of server text in the log.
const maxServerText = 256

// failureBody has the error fields of the known servers.
type failureBody struct {
	Error       json.RawMessage `json:"error"`             // OAuth: the code; Google: an object
	Description string          `json:"error_description"` // OAuth
	Message     string          `json:"message"`           // GitHub, 1Password, AWS
	Type        string          `json:"__type"`            // AWS: the code, possibly behind a namespace
	Errors      []string        `json:"errors"`            // Vault
}

// newRefusal returns the error of a response without success.
func newRefusal(res *http.Response, body []byte, r Request) *Error {
	e := &Error{Status: res.StatusCode, RetryAfter: retryAfter(res.Header, time.Now())}
	code, message := parseFailure(body)
	if codes[code] {
		e.Code = code
	}
	e.ServerText = audit.Escape(maskTexts(message, r.secretTexts()), maxServerText)
	e.Gone = isGone(e)
	return e
}

// parseFailure returns the code and the text of a failure.
func parseFailure(body []byte) (code, message string) {
	var x struct { // AWS STS
		Code    string `xml:"Error>Code"`
		Message string `xml:"Error>Message"`
	}
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")) && xml.Unmarshal(body, &x) == nil {
		return x.Code, x.Message
	}
	var f failureBody
	if json.Unmarshal(body, &f) != nil {
		return "", ""
	}
	message = strings.Join(append([]string{f.Description, f.Message}, f.Errors...), " ")
	if json.Unmarshal(f.Error, &code) == nil && code != "" {
		return code, message
	}
	var google struct {
		Status  string `json:"status"`
		Message string `json:"message"`
	}
	if json.Unmarshal(f.Error, &google) == nil && google.Status != "" {
		return google.Status, message + google.Message
	}
	return f.Type[strings.LastIndexByte(f.Type, '#')+1:], message
}

// isGone reports whether a refusal means that the secret or grant in the request was revoked or deleted, as opposed to
// a server that is broken, busy or unsure.
func isGone(e *Error) bool {
	switch e.Code {
	case "invalid_grant", "ResourceNotFoundException", "NOT_FOUND":
		return true
	}
	return e.Status == http.StatusNotFound || e.Status == http.StatusGone
}

// secretTexts returns the texts to mask in a server's text about the request, longest first.
func (r *Request) secretTexts() (texts []string) {
	add := func(text string) {
		if len(text) > 3 {
			texts = append(texts, text, url.QueryEscape(text), url.PathEscape(text))
			texts = append(texts, base64.StdEncoding.EncodeToString([]byte(text)), base64.RawURLEncoding.EncodeToString([]byte(text)))
		}
	}
	for _, s := range r.Hide {
		add(s.Reveal())
	}
	for _, key := range []string{"Authorization", "X-Vault-Token"} {
		_, credential, _ := strings.Cut(" "+r.Header.Get(key), " ")
		for part := range strings.FieldsSeq(credential) {
			add(part)
		}
	}
	for _, key := range []string{"client_secret", "client_assertion", "assertion", "refresh_token", "secret_id", "jwt"} {
		add(r.Form.Get(key))
	}
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) })
	return texts
}

// maskTexts replaces every occurrence of the texts, which are sorted from long to short.
func maskTexts(message string, texts []string) string {
	for _, text := range texts {
		message = strings.ReplaceAll(message, text, "[redacted]")
	}
	return strings.TrimSpace(message)
}

// FieldOf returns a text field of a JSON object.
func FieldOf(object, field string) (Value, error) {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(object), &fields) != nil {
		return Value{}, ErrAnswer("JSON object to take the field from")
	}
	var text string
	raw, ok := fields[field]
	if !ok || json.Unmarshal(raw, &text) != nil || text == "" {
		return Value{}, ErrAnswer("text in the configured field")
	}
	return Value{Secret: name.NewSecret(text)}, nil
}
