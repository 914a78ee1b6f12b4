package visitors

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// slowest runs slowhttptest with 1,000 connections, opening 500 a second. It reads the site's address from a hosts
// file.
var slowest = []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`}

// Each of slowhttptest's modes with 1,000 connections does not affect other visitors, and its own address is served
// again afterwards.
func TestSlowClientsHoldNothing(t *testing.T) {
	if !full {
		nightly.Only(t) // 1,000 connections for each kind
	}
	t.Parallel()
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		http.ServeContent(w, r, "large", time.Time{}, strings.NewReader(strings.Repeat("large ", 100<<10)))
	}), map[string]any{})
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte(s.gateway+" "+s.host+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, flags := range map[string][]string{
		"slow headers": {"-H", "-i", "1"},
		"slow body":    {"-B", "-i", "1", "-s", "100000"},
		"ranges":       {"-R", "-a", "1", "-b", "3000"},
		"slow reader":  {"-X", "-w", "512", "-y", "1024", "-n", "1", "-z", "32", "-k", "3"},
	} {
		t.Run(mode, func(t *testing.T) {
			seconds := 6
			if full {
				seconds = 60
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second+time.Minute)
			defer cancel()
			argv := append(slices.Clone(slowest), hosts, "slowhttptest", "-c", "1000", "-r", "500", "-p", "5", "-x", "24")
			argv = append(argv, append(flags, "-l", strconv.Itoa(seconds), "-u", s.URL)...)
			ended := make(chan string)
			go func() {
				out, _ := s.run(ctx, t.TempDir(), argv...) // the exit status is not meaningful
				ended <- out
			}()
			s.undisturbed(t, ended)
		})
	}
}

var (
	// outcome matches slowhttptest's report about its connections after a complete run.
	outcome = regexp.MustCompile(`(?s).*(initializing:.*service available: *\S+).*Exit status: (?:Hit test time limit|No open connections left)`)
	colours = regexp.MustCompile("\x1b\\[[0-9;]*m")
)

// undisturbed makes requests from another address until the slow ones have ended, each on a new connection.
func (s *site) undisturbed(t *testing.T, ended chan string) {
	t.Helper()
	other := s.visitor(s.Net.Gateway().DialContext, "127.0.0.1")
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	for n := 1; ; n++ {
		s.served(t, other)
		select {
		case <-pace.C:
		case out := <-ended:
			account := outcome.FindStringSubmatch(colours.ReplaceAllString(out, ""))
			if account == nil {
				t.Fatalf("slowhttptest has not done its work:\n%s", out)
			}
			t.Logf("%d requests of another visitor; slowhttptest: %s", n, strings.Join(strings.Fields(account[1]), " "))
			s.served(t, s.visitor(s.Net.Internet().DialContext, s.gateway))
			return
		}
	}
}

// visitor returns a client that opens the site at an address.
func (s *site) visitor(dial func(ctx context.Context, network, address string) (net.Conn, error), at string) *http.Client {
	s.T.Helper()
	pem, err := os.ReadFile(filepath.Clean(s.roots))
	if err != nil {
		s.T.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, net.JoinHostPort(at, "443"))
		},
	}
	return &http.Client{Transport: transport, Timeout: harness.Patience}
}

// served requires that a visitor gets the site.
func (s *site) served(t *testing.T, c *http.Client) {
	t.Helper()
	resp, err := c.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK || n < 1<<19 {
		t.Fatalf("%s, %d bytes, %v", resp.Status, n, err)
	}
}
