package sdk

import (
	"encoding/json"
	"errors"
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

// node is a folder with the scripts of testdata and the npm packages that its lock file names.
type node struct {
	npm.Folder
	types string         // the file of shapes, if calls are compared with the SDK's types
	apart *harness.World // the host of the fleet that has the boxes, if the client uses another one
	roots string         // file with the CAs of public URLs, if they are served by HTTPS
}

func newNode(t *testing.T) node {
	t.Helper()
	return node{Folder: npm.Copy(t, "testdata")}
}

// newWorld starts a gateway whose public URLs and API are on loopback, and also returns the API's key.
func newWorld(t *testing.T, changes ...func(*config.Config)) (w *harness.World, key string) {
	t.Helper()
	w = harness.NewWorld(t, configure(t, changes...))
	return w, strings.TrimSpace(w.KeyFile("api-key"))
}

func configure(t *testing.T, changes ...func(*config.Config)) func(*config.Config) {
	t.Helper()
	remote, _ := harness.Remote(t)
	return func(c *config.Config) {
		c.Remote = remote
		c.Ingress.HTTPS, c.Ingress.HTTP, c.Ingress.Domain = "", "127.0.0.1:80", "localhost"
		c.Approvals.Enabled = true
		c.Secrets.Sources = map[string]secrets.Source{"openai": {Command: []string{"echo", "sk-of-the-examples"}}}
		for _, change := range changes {
			change(c)
		}
	}
}

// newWorlds starts the gateways of two hosts. Clients of the first one get boxes of the second, and HTTPS addresses of their ports.
func newWorlds(t *testing.T, n *node) (w *harness.World, key string) {
	t.Helper()
	hosts := harness.NewApart(t, configure(t, func(c *config.Config) { c.Ingress.HTTPS, c.Ingress.Domain = ":443", "boxes.example.net" }))
	n.apart, n.roots = hosts.Far.World, filepath.Join(t.TempDir(), "roots.pem")
	var pem []byte
	if err := errors.Join(n.apart.Client.Get(t.Context(), "/v2/ca", &pem), os.WriteFile(n.roots, pem, 0o600)); err != nil {
		t.Fatal(err)
	}
	return hosts.Near.World, hosts.Key
}

const baseURL = "http://127.0.0.1:8600"

// lines runs a command in the gateway's namespace and calls each for every line of JSON that it prints.
func lines(w *harness.World, cmd *exec.Cmd, each func(*json.Decoder) error) error {
	return npm.Lines(w.Net.Gateway(), cmd, each)
}
