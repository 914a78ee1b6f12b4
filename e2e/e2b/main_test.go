package e2b

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/e2e/harness/npm"
	"boxgate/secrets"
)

func TestMain(m *testing.M) { harness.Main(m) }

// domain is the domain of the gateway's public URLs, and so the one that E2B_DOMAIN names.
const domain = "boxes.example.net"

// site is a gateway that speaks E2B's dialect, with the names below its domain on the test internet.
type site struct {
	*harness.World
	boxes    *harness.World // where the boxes are; another host of a fleet, or the same
	scripts  npm.Folder
	key      string   // an admin's API key
	without  []string // tests that are left out
	ca       string   // file with the CA of public URLs
	resolver string   // a resolv.conf that names the internet's DNS server
}

// newSite starts the gateway.
func newSite(t *testing.T, changes ...func(*config.Config)) *site {
	t.Helper()
	w := harness.NewWorld(t, configure(changes...))
	return siteOf(t, w, w, strings.TrimSpace(w.KeyFile("api-key")))
}

// newSiteApart starts the gateways of two hosts. Clients of the first one get boxes of the second.
func newSiteApart(t *testing.T) *site {
	t.Helper()
	hosts := harness.NewApart(t, configure())
	return siteOf(t, hosts.Near.World, hosts.Far.World, hosts.Key)
}

func configure(changes ...func(*config.Config)) func(*config.Config) {
	return func(c *config.Config) {
		c.E2B.Enabled = true
		c.Ingress.Domain = domain
		c.Secrets.Sources = map[string]secrets.Source{"openai": {Command: []string{"echo", "sk-of-the-operator"}}, "other": {Command: []string{"echo", "other"}}}
		for _, change := range changes {
			change(c)
		}
	}
}

func siteOf(t *testing.T, w, boxes *harness.World, key string) *site {
	t.Helper()
	s := &site{World: w, boxes: boxes, key: key}
	dir := t.TempDir()
	s.ca, s.resolver = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "resolv.conf")
	err := os.WriteFile(s.resolver, []byte("nameserver 192.0.2.53\n"), 0o600)
	var roots []byte
	for _, w := range []*harness.World{w, boxes} {
		v4, _ := w.Net.GatewayAddrs()
		var pem []byte
		err = errors.Join(err, w.Net.SetRecords("*."+domain, "*."+domain+". 60 IN A "+v4.String()), w.Client.Get(t.Context(), "/v2/ca", &pem))
		roots = append(roots, pem...)
	}
	if err = errors.Join(err, os.WriteFile(s.ca, roots, 0o600)); err != nil {
		t.Fatal(err)
	}
	s.serveDigests(t)
	return s
}

// install installs the SDK, with the scripts of testdata.
func (s *site) install(t *testing.T) {
	t.Helper()
	s.scripts = npm.Copy(t, "../sdk/testdata")
	s.scripts.Add(t, "testdata", "e2b")
}

// tenant prepares a script that has two variables of E2B, and resolves names by the internet's DNS server.
func (s *site) tenant(t *testing.T, script string, args ...string) *exec.Cmd {
	inner := s.scripts.Command(t.Context(), script, args...)
	mount := `mount --bind "$0" "$(realpath /etc/resolv.conf)" && exec "$@"`
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-c", mount, s.resolver}, inner.Args...)...)
	cmd.Dir = inner.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.Dir, "NODE_EXTRA_CA_CERTS=" + s.ca, "E2B_API_KEY=" + s.key, "E2B_DOMAIN=" + domain}
	return cmd
}

// digestHost is a server that answers with the SHA-256 of the request's Authorization, so that a test sees which secret it
// received without the secret in the answer.
const digestHost = "api.example.com"

func (s *site) serveDigests(t *testing.T) {
	t.Helper()
	err := s.boxes.Net.ServeHTTP(digestHost, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		_, _ = io.WriteString(w, hex.EncodeToString(sum[:]))
	}))
	if err != nil {
		t.Fatal(err)
	}
}

// gitPassword is the one that the server of repositories requires.
const gitPassword = "git-password-of-the-test"

// serveGit serves a repository at https://git.example.com/app.git to the user ada.
func (s *site) serveGit(t *testing.T) {
	t.Helper()
	root := t.TempDir()
	for _, args := range [][]string{{"init", "-q", "--bare", "-b", "main", "app.git"}, {"-C", "app.git", "config", "http.receivepack", "true"}} {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
	smart := harness.GitServer(t, root, "/")
	err := s.boxes.Net.ServeHTTP("git.example.com", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != gitPassword {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "a password is required", http.StatusUnauthorized)
			return
		}
		smart.ServeHTTP(w, r)
	}))
	if err != nil {
		t.Fatal(err)
	}
}

// lines runs a command in the gateway's namespace.
func (s *site) lines(cmd *exec.Cmd, each func(*json.Decoder) error) error {
	return npm.Lines(s.Net.Gateway(), cmd, each)
}
