package sdk

import (
	"encoding/json"
	"os/exec"
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
	types string // the file of shapes, if calls are compared with the SDK's types
}

func newNode(t *testing.T) node {
	t.Helper()
	return node{Folder: npm.Copy(t, "testdata")}
}

// newWorld starts a gateway whose public URLs and API are on loopback, and also returns the API's key.
func newWorld(t *testing.T, changes ...func(*config.Config)) (w *harness.World, key string) {
	t.Helper()
	remote, _ := harness.Remote(t)
	w = harness.NewWorld(t, func(c *config.Config) {
		c.Remote = remote
		c.Ingress.HTTPS, c.Ingress.HTTP, c.Ingress.Domain = "", "127.0.0.1:80", "localhost"
		c.Approvals.Enabled = true
		c.Secrets.Sources = map[string]secrets.Source{"openai": {Command: []string{"echo", "sk-of-the-examples"}}}
		for _, change := range changes {
			change(c)
		}
	})
	return w, strings.TrimSpace(w.KeyFile("api-key"))
}

const baseURL = "http://127.0.0.1:8600"

// lines runs a command in the gateway's namespace and calls each for every line of JSON that it prints.
func lines(w *harness.World, cmd *exec.Cmd, each func(*json.Decoder) error) error {
	return npm.Lines(w.Net.Gateway(), cmd, each)
}
