package visitors

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/api"
	"boxgate/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// full selects complete runs of the programs, for `make conformance`.
var full = os.Getenv("CONFORMANCE_FULL") != ""

// unpacked is where `make visitors` unpacks the programs.
const unpacked = "/var/lib/boxgate/visitors"

// site is a box with an application, and the application's public URL.
type site struct {
	*harness.World
	box string
	harness.PublicURL
	host    string
	gateway string // the gateway's address on the internet
	roots   string // file of the CA of public URLs
}

// newSite serves an application in a box and creates a public URL for it.
func newSite(t *testing.T, app http.Handler, with map[string]any) *site {
	t.Helper()
	server := &http.Server{Handler: app}
	t.Cleanup(func() { _ = server.Close() })
	return newService(t, func(ln net.Listener) { _ = server.Serve(ln) }, with)
}

// newService is newSite for a server of any protocol. serve returns when its listener is closed.
func newService(t *testing.T, serve func(net.Listener), with map[string]any) *site {
	t.Helper()
	if _, err := os.Stat(filepath.Join(unpacked, "usr")); err != nil {
		t.Fatalf("there is nobody to visit a public URL: run `sudo make visitors` (%v)", err)
	}
	w := harness.Shared(t)
	in := w.Intrude(w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}}))
	s := &site{World: w, box: in.Box, roots: filepath.Join(t.TempDir(), "ca.pem")}
	var ln net.Listener
	err := in.InNetNS(func() (err error) {
		ln, err = net.Listen("tcp", ":8000")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go serve(ln)
	with["port"] = 8000
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(s.box, "preview"), with, &s.PublicURL); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	s.host = u.Hostname()
	v4, _ := w.Net.GatewayAddrs()
	s.gateway = v4.String()
	var pem []byte
	if err := w.Client.Get(t.Context(), "/v2/ca", &pem); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.roots, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs an unpacked program on the internet, with its own home directory, and returns its output.
func (s *site) run(ctx context.Context, home string, argv ...string) (string, error) {
	s.T.Helper()
	var out strings.Builder
	cmd := exec.CommandContext(ctx, "env", argv...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Dir = home
	usr := filepath.Join(unpacked, "usr")
	cmd.Env = append(os.Environ(), "HOME="+home, "PATH="+filepath.Join(usr, "bin")+":"+os.Getenv("PATH"),
		"LD_LIBRARY_PATH="+filepath.Join(unpacked, "lib"),
		"NODE_PATH="+filepath.Join(unpacked, "node_modules"))
	if err := s.Net.Internet().Start(cmd); err != nil {
		s.T.Fatal(err)
	}
	err := cmd.Wait()
	return out.String(), err
}

// respond answers with a body of a type.
func respond(kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write([]byte(body))
	}
}
