package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"boxgate/api/stream"
	"boxgate/policy/document"
)

// Client calls the admin API for the command line. Safe for concurrent use.
type Client struct {
	target string // as given, for messages
	base   string
	key    string
	http   *http.Client
	onWait func() (end func()) // see OnWait; may be nil
}

// NewClient makes a client for the API at target: the path of a unix socket, or an http or https URL.
func NewClient(target, key string) *Client {
	transport := &http.Transport{} // no proxy from the environment: the key must not go there
	c := &Client{target: target, base: strings.TrimSuffix(target, "/"), key: key, http: &http.Client{Transport: transport}}
	if !strings.HasPrefix(target, "http://") && !strings.HasPrefix(target, "https://") {
		c.base = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", target)
		}
	}
	// A redirect would carry the key elsewhere; the API never redirects.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

// NewClientOver makes a client whose requests go through a transport, which also identifies the caller.
func NewClientOver(transport http.RoundTripper) *Client {
	c := &Client{target: "the admin API", base: "http://localhost", http: &http.Client{Transport: transport}}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c
}

// TrustCertificate makes the client accept this certificate (PEM), and no other, from a server of an https URL, whatever name the URL
// has. Without a certificate in the text it has no effect. Call it before the first request.
func (c *Client) TrustCertificate(text []byte) {
	block, _ := pem.Decode(text)
	transport, ok := c.http.Transport.(*http.Transport)
	if block == nil || !ok {
		return
	}
	// The handshake proves that the server has the key of the certificate.
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error { //nolint:gosec // compares the certificate
		if len(s.PeerCertificates) == 0 || !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {
			return errors.New("the server has another certificate than admin.tls.cert")
		}
		return nil
	}}
}

// OnWait sets a function that Do calls before it waits for an answer. Do calls end afterwards. Call OnWait before the first request.
func (c *Client) OnWait(begin func() (end func())) { c.onWait = begin }

// BoxesPath returns the path of the list of boxes: all of them, or those with a label.
func BoxesPath(label string) string {
	if label == "" {
		return "/v2/box"
	}
	return "/v2/box?" + url.Values{"label": {label}}.Encode()
}

// SelectionPath returns the path of the list of the boxes with a label, if one is given, and with all entries of metadata.
func SelectionPath(label string, metadata map[string]string) string {
	if len(metadata) == 0 {
		return BoxesPath(label)
	}
	pairs, query := url.Values{}, url.Values{}
	for key, value := range metadata {
		pairs.Set(key, value)
	}
	query.Set("metadata", pairs.Encode())
	if label != "" {
		query.Set("label", label)
	}
	return "/v2/box?" + query.Encode()
}

// BoxPath returns the API path of a box, or of a resource below it.
func BoxPath(box string, below ...string) string {
	return "/v2/box/" + url.PathEscape(box) + strings.Join(append([]string{""}, below...), "/")
}

// ResponseError is an error response of the API.
type ResponseError struct {
	Status  int
	Message string // the server's own message
	Pointer string // to the first problem of the body, if the body was refused

	Problems []document.Problem // all problems of the body
}

// Error returns the server's message.
func (e *ResponseError) Error() string { return e.Message }

// Do sends in as JSON (nil: no body) and decodes the response into out (nil: ignored; *[]byte: undecoded). An error
// response is returned as a *[ResponseError].
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	return c.do(ctx, method, path, nil, in, out)
}

// DoIf is [Client.Do] if the resource still has a version; else the error is a *[ResponseError] with status 412.
func (c *Client) DoIf(ctx context.Context, version uint64, method, path string, in, out any) error {
	return c.do(ctx, method, path, http.Header{"If-Match": {strconv.Quote(strconv.FormatUint(version, 10))}}, in, out)
}

func (c *Client) do(ctx context.Context, method, path string, header http.Header, in, out any) error {
	if c.onWait != nil {
		defer c.onWait()()
	}
	resp, err := c.send(ctx, method, path, in, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		if refused := parseRefusal(data); refused.Status >= http.StatusBadRequest { // the call failed after the status of success was sent
			return refused
		}
		return fmt.Errorf("the gateway's answer is incomplete: %w", err)
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*out = data
		return nil
	default:
		if json.Unmarshal(data, out) != nil {
			return errors.New("the response does not come from a gateway; is this its admin API?")
		}
		return nil
	}
}

// Get is Do with GET.
func (c *Client) Get(ctx context.Context, path string, out any) error {
	return c.Do(ctx, http.MethodGet, path, nil, out)
}

func (c *Client) send(ctx context.Context, method, path string, in any, header http.Header) (*http.Response, error) {
	if in == nil {
		return c.sendBody(ctx, method, path, nil, header)
	}
	data, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	header = header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/json")
	return c.sendBody(ctx, method, path, bytes.NewReader(data), header)
}

// Stream sends a body of the given media type (nil: no body) without buffering it. The caller must close the body of the
// response.
func (c *Client) Stream(ctx context.Context, method, path, media string, body io.Reader) (*http.Response, error) {
	header := http.Header{}
	if media != "" {
		header.Set("Content-Type", media)
	}
	return c.sendBody(ctx, method, path, body, header)
}

func (c *Client) sendBody(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("%q is neither the URL nor the socket of an admin API", c.target)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	if c.key != "" {
		req.Header.Set(KeyHeader, c.key)
	}
	if method == http.MethodPost {
		req.Header.Set("Prefer", "wait=600") // a command line always waits for the result
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		defer resp.Body.Close()
		return nil, readRefusal(resp)
	}
	return resp, nil
}

// Listens returns nil if the address of the API accepts connections, or the reason it cannot be reached.
func (c *Client) Listens() error {
	ctx, cancel := context.WithTimeout(context.Background(), listensTimeout)
	defer cancel()
	network, address := "unix", c.target
	if u, err := url.Parse(c.target); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		port := u.Port()
		if port == "" {
			port = u.Scheme
		}
		network, address = "tcp", net.JoinHostPort(u.Hostname(), port)
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return c.unreachable(err)
	}
	return conn.Close()
}

const listensTimeout = 10 * time.Second

// unreachable turns a transport error into a message for people.
func (c *Client) unreachable(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	why := "the gateway cannot be reached at " + c.target
	timeout, timed := errors.AsType[net.Error](err)
	name, unresolved := errors.AsType[*net.DNSError](err)
	number, system := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: nothing listens there. Is it running? `systemctl status boxgate`, or start it with `gateway serve`", why)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%s: permission denied. Run this with sudo, or as a member of admin.group", why)
	case unresolved:
		return fmt.Errorf("%s: the name %s cannot be resolved", why, name.Name)
	case timed && timeout.Timeout():
		return fmt.Errorf("%s: it did not answer in time", why)
	case system:
		return fmt.Errorf("%s: %w", why, number)
	}
	return fmt.Errorf("%s: %w", why, err)
}

// WebSocket opens a WebSocket. An error response is a *[ResponseError].
func (c *Client) WebSocket(ctx context.Context, path string) (*websocket.Conn, error) {
	opts := &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: http.Header{}}
	if c.key != "" {
		opts.HTTPHeader.Set(KeyHeader, c.key)
	}
	conn, resp, err := websocket.Dial(ctx, c.base+path, opts)
	switch {
	case err == nil:
		return conn, nil
	case resp != nil && resp.StatusCode != http.StatusSwitchingProtocols:
		defer resp.Body.Close()
		return nil, readRefusal(resp)
	}
	return nil, c.unreachable(err)
}

// mostRefusal bounds the body of an error response, in bytes. It may name every entry of a policy's lists.
const mostRefusal = 16 << 20

func readRefusal(resp *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(resp.Body, mostRefusal))
	refused := parseRefusal(data)
	if refused.Status = resp.StatusCode; refused.Message == "" {
		refused.Message = "the gateway answered " + resp.Status
	}
	return refused
}

// parseRefusal parses the body of an error response; the message is empty if it is anything else. The body has a status only if the
// call failed after its response had begun.
func parseRefusal(data []byte) *ResponseError {
	var body struct {
		Error, Pointer string
		Problems       []document.Problem
		Status         int
	}
	if json.Unmarshal(data, &body) != nil {
		return &ResponseError{}
	}
	return &ResponseError{body.Status, body.Error, body.Pointer, body.Problems}
}

// execBody is a request to run a command.
type execBody struct {
	Command []string          `json:"command"`
	Folder  string            `json:"folder,omitempty"`
	User    string            `json:"user,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Timeout int64             `json:"timeout,omitempty"` // milliseconds
}

func (r ExecRequest) body() execBody {
	return execBody{Command: r.Command, Folder: r.Dir, User: r.User, Env: r.Env, Timeout: r.Timeout.Milliseconds()}
}

// Start starts a command in a box, which continues without a client. run (nil: ignored; *[]byte: undecoded) receives its run.
func (c *Client) Start(ctx context.Context, box string, req ExecRequest, run any) error {
	return c.Do(ctx, http.MethodPost, BoxPath(box, "exec-detached"), req.body(), run)
}

// Exec runs a command in a box, copies its output as it arrives, and returns its exit code. It does not send the standard input of the
// request.
func (c *Client) Exec(ctx context.Context, box string, req ExecRequest, stdout, stderr io.Writer) (int, error) {
	return c.follow(ctx, http.MethodPost, BoxPath(box, "exec-stream"), req.body(), stdout, stderr)
}

// Code is source text to run in a box.
type Code struct {
	Code     string
	Language string        // js, ts or python
	Dir      string        // absolute, or below [Workspace]; "": [Workspace]
	Timeout  time.Duration // 0: no limit
}

// RunCode is [Client.Exec] for source text.
func (c *Client) RunCode(ctx context.Context, box string, code Code, stdout, stderr io.Writer) (int, error) {
	body := struct {
		Code     string `json:"code"`
		Language string `json:"language"`
		Folder   string `json:"folder,omitempty"`
		Timeout  int64  `json:"timeout,omitempty"`
	}{code.Code, code.Language, code.Dir, code.Timeout.Milliseconds()}
	return c.follow(ctx, http.MethodPost, BoxPath(box, "code-stream"), body, stdout, stderr)
}

// Attach copies the output of a process from now on, and returns its exit code.
func (c *Client) Attach(ctx context.Context, box string, pid int, stdout, stderr io.Writer) (int, error) {
	return c.follow(ctx, http.MethodGet, BoxPath(box, "processes", strconv.Itoa(pid), "output"), nil, stdout, stderr)
}

// follow copies the output of a command as it arrives, and returns its exit code.
func (c *Client) follow(ctx context.Context, method, path string, body any, stdout, stderr io.Writer) (int, error) {
	resp, err := c.send(ctx, method, path, body, http.Header{"Accept": {stream.NDJSON}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var f stream.Frame
		if err := dec.Decode(&f); err != nil {
			return 0, fmt.Errorf("the stream ended before the command did: %w", err)
		}
		switch {
		case f.Error != "":
			return 0, errors.New(f.Error)
		case f.ExitCode != nil:
			return *f.ExitCode, nil
		case f.Stream == "stderr":
			_, err = stderr.Write(f.Data)
		default:
			_, err = stdout.Write(f.Data)
		}
		if err != nil {
			return 0, err
		}
	}
}

// Lines reads an NDJSON stream and calls each for every line until the stream ends, ctx ends or each fails.
func (c *Client) Lines(ctx context.Context, path string, each func(line []byte) error) error {
	return c.Events(ctx, path, func(string) {}, each)
}

// longestLine exceeds the longest line of any stream. An audit entry can name hundreds of policy entries, and a name of a
// thousand bytes takes three times as many in JSON. A longer line would end the stream and hide every line after it.
const longestLine = 5 << 20

// Events is Lines for a stream of decisions. Before the first line it calls begin with the ID of the gateway's run.
func (c *Client) Events(ctx context.Context, path string, begin func(run string), each func(line []byte) error) error {
	return c.events(ctx, path, func(h http.Header) { begin(h.Get(stream.RunHeader)) }, each)
}

// History is Events for the decisions on disk. begin is called with the time since which the log is complete, or zero if
// the gateway is too old to report it.
func (c *Client) History(ctx context.Context, path string, begin func(whole time.Time), each func(line []byte) error) error {
	return c.events(ctx, path, func(h http.Header) {
		whole, _ := time.Parse(time.RFC3339Nano, h.Get(stream.WholeHeader))
		begin(whole)
	}, each)
}

func (c *Client) events(ctx context.Context, path string, begin func(http.Header), each func(line []byte) error) error {
	resp, err := c.send(ctx, http.MethodGet, path, nil, http.Header{"Accept": {stream.NDJSON}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	begin(resp.Header)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue // keepalive
		}
		if err := each(lines.Bytes()); err != nil {
			return err
		}
	}
	err = lines.Err()
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the gateway's answer is incomplete: %w", err)
	}
	return err
}
