package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/api/apitest"
	"boxgate/api/stream"
	"boxgate/policy"
)

// waiting runs commands that end when the test releases them.
type waiting struct {
	released chan struct{}
	exit     int
	err      error
}

func (h waiting) Exec(ctx context.Context, _ policy.BoxID, _ api.ExecRequest, _, stderr io.Writer) (api.ExecResult, error) {
	select {
	case <-h.released:
	case <-ctx.Done():
		return api.ExecResult{}, ctx.Err()
	}
	_, _ = io.WriteString(stderr, "why")
	return api.ExecResult{ExitCode: h.exit}, h.err
}

// releasing releases a command when the header of its response has arrived, which is before the command has ended.
type releasing struct {
	http.RoundTripper
	key     string
	release func()
	proto   string
}

func (r *releasing) RoundTrip(req *http.Request) (*http.Response, error) {
	req.Header.Set(api.KeyHeader, r.key)
	if req.URL.Host == "localhost" && r.proto == "HTTP/2.0" {
		req.URL.Scheme = "https"
	}
	resp, err := r.RoundTripper.RoundTrip(req)
	if err == nil {
		r.proto = resp.Proto
	}
	r.release()
	return resp, err
}

// silentServer serves an API that keeps silent connections alive every few milliseconds, over TCP, TLS with HTTP/2, or a Unix socket, with a
// box whose commands are h. It returns the transport to it.
func silentServer(t *testing.T, how string, h waiting) *releasing {
	t.Helper()
	f := serve(t, func(c *Config) { c.Commands, c.Silence = h, 5*time.Millisecond })
	f.create(t, `{"name":"web"}`)
	srv := httptest.NewUnstartedServer(f.api)
	srv.Config = f.api.Server()
	transport := &http.Transport{}
	proto := "HTTP/1.1"
	switch how {
	case "HTTP/2":
		srv.EnableHTTP2 = true
		srv.StartTLS()
		transport, proto = srv.Client().Transport.(*http.Transport).Clone(), "HTTP/2.0"
	case "Unix socket":
		ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		_ = srv.Listener.Close()
		srv.Listener = ln
		srv.Start()
	default:
		srv.Start()
	}
	t.Cleanup(srv.Close)
	t.Cleanup(transport.CloseIdleConnections)
	at := srv.Listener.Addr()
	transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, at.Network(), at.String())
	}
	if transport.TLSClientConfig != nil {
		transport.TLSClientConfig.ServerName = "example.com"
	}
	return &releasing{transport, apitest.Key, sync.OnceFunc(func() { close(h.released) }), proto}
}

// The command line gets the results and the failures of long calls, over each listener.
func TestLongCallsOverEachListener(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"HTTP/1.1", "HTTP/2", "Unix socket"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			var ran struct {
				ExitCode int    `json:"exit_code"`
				Error    string `json:"error"`
			}
			client := silentServer(t, how, waiting{released: make(chan struct{}), exit: 3})
			err := api.NewClientOver(client).Do(t.Context(), "POST", "/v2/box/web/exec", map[string]any{"command": []string{"x"}}, &ran)
			if err != nil || ran.ExitCode != 3 || ran.Error != "why" || strings.HasPrefix(client.proto, "HTTP/2") != (how == "HTTP/2") {
				t.Errorf("%+v %v over %s", ran, err, client.proto)
			}
			client = silentServer(t, how, waiting{released: make(chan struct{}), err: api.Errorf(api.ErrUnavailable, "it is gone")})
			err = api.NewClientOver(client).Do(t.Context(), "POST", "/v2/box/web/exec", map[string]any{"command": []string{"x"}}, &ran)
			if err != nil || ran.ExitCode != -1 || ran.Error != "it is gone" {
				t.Errorf("%+v %v", ran, err)
			}
			client = silentServer(t, how, waiting{released: make(chan struct{}), exit: 3})
			err = api.NewClientOver(client).Do(t.Context(), "POST", "/v2/box/web/git/push", map[string]any{}, nil)
			if refused, ok := errors.AsType[*api.ResponseError](err); !ok || refused.Status != http.StatusUnprocessableEntity || !strings.Contains(refused.Message, "git push failed with exit code 3: why") {
				t.Errorf("%v", err)
			}
		})
	}
}

// The frames of exec-stream are kept alive by empty lines.
func TestSilentFrames(t *testing.T) {
	t.Parallel()
	client := silentServer(t, "HTTP/1.1", waiting{released: make(chan struct{}), exit: 3})
	release := client.release
	client.release = func() {}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://localhost/v2/box/web/exec-stream", strings.NewReader(`{"command":["x"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", stream.NDJSON)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "\n" {
		t.Errorf("%q %v", line, err)
	}
	release()
	text, err := io.ReadAll(lines)
	if got := strings.TrimSpace(string(text)); err != nil || !strings.HasPrefix(got, `{"stream":"stderr","data":"d2h5"}`) || !strings.HasSuffix(got, `{"exit_code":3}`) {
		t.Errorf("%q %v", got, err)
	}
}
