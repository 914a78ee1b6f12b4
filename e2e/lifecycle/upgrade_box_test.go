package lifecycle

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// visitors returns clients of public URLs: one that keeps its connections, and one that opens one for each request.
func (u *upgrading) visitors() (keeping, opening *http.Client) {
	u.T.Helper()
	var pem []byte
	if err := u.Client.Get(u.T.Context(), "/v2/ca", &pem); err != nil {
		u.T.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	client := func(keep bool) *http.Client {
		transport := &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: !keep,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				_, port, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				return u.Net.Gateway().DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
			},
		}
		u.T.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: harness.Patience}
	}
	return client(true), client(false)
}

// get visits a URL that must answer with 200.
func get(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// While the gateway is replaced, visitors of a public URL are answered, the admin API accepts changes, and a command in
// a launched box runs to its end with all of its output. If the outcome of a request is lost, the trail records it as
// unknown.
func TestUpgradesKeepCommandsAndVisitors(t *testing.T) {
	t.Parallel()
	u := newUpgrading(t, nil)
	u.StartIfStopped()
	box := u.Create(map[string]any{"network_policy": harness.Custom("api.example.com")})
	u.MustSh(box, "nohup python3 -m http.server 8000 >/dev/null 2>&1 & for i in $(seq 100); do curl -s -o /dev/null http://127.0.0.1:8000/ && exit 0; sleep 0.1; done; exit 1")
	var url struct{ URL string }
	if err := u.Client.Do(t.Context(), http.MethodPost, api.BoxPath(box, "preview"), map[string]any{"port": 8000}, &url); err != nil {
		t.Fatal(err)
	}
	type ran struct {
		Output   string
		ExitCode int `json:"exit_code"`
	}
	waited, done := ran{}, make(chan error, 1)
	go func() {
		body := map[string]any{"command": []string{"sh", "-c", "touch /tmp/begun; until test -e /tmp/end; do sleep 0.05; done; echo waited"}}
		done <- u.Client.Do(t.Context(), http.MethodPost, api.BoxPath(box, "exec"), body, &waited)
	}()
	u.MustSh(box, "until test -e /tmp/begun; do sleep 0.05; done")
	keeping, opening := u.visitors()
	cmd := u.Command(t.Context(), "box", "exec", box, "--", "sh", "-c", "i=0; until test -e /tmp/end; do i=$((i+1)); echo $i; sleep 0.05; done; echo end")
	cmd.Path = harness.Gateway()
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &steady{stop: make(chan struct{})}
	s.run("a visitor who keeps connections", func() error { return get(t.Context(), keeping, url.URL) })
	s.run("a visitor who opens connections", func() error { return get(t.Context(), opening, url.URL) })
	s.run("changes", func() error {
		return u.Client.Do(t.Context(), http.MethodPut, api.BoxPath(box, "config/network-policy"), harness.Custom("api.example.com"), nil)
	})
	for range 2 {
		u.mustReplace("upgrade")
		before := s.counts()
		u.Until("visits and changes go on", func() bool { return s.progressed(before) })
	}
	s.finish(t)
	u.MustSh(box, "touch /tmp/end")
	if err := cmd.Wait(); err != nil {
		t.Errorf("the command: %v", err)
	}
	if err := <-done; err != nil || !strings.Contains(waited.Output, "waited") {
		t.Errorf("a command whose output is answered when it ends: %+v, %v", waited, err)
	}
	if text := u.Run(0, nil, "", "audit", "--box", box); strings.Count(text, "the outcome is unknown: the gateway was replaced") != 1 {
		t.Errorf("the trail does not say once that the outcome of a command is unknown: %s", text)
	}
	lines := strings.Fields(out.String())
	for i, line := range lines[:max(0, len(lines)-1)] {
		if line != fmt.Sprint(i+1) {
			t.Fatalf("line %d of the command's output is %q", i+1, line)
		}
	}
	if len(lines) < 2 || lines[len(lines)-1] != "end" {
		t.Errorf("the output of the command ends with %q", lines[max(0, len(lines)-3):])
	}
}
