package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/secrets"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
)

func TestMain(m *testing.M) { harness.Main(m) }

// node is a directory with the scripts of testdata and the npm packages that its lock file names.
type node struct{ dir, types string } // types: the file of shapes, if calls are compared with the SDK's types

func newNode(t *testing.T) node {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatal("this test needs Node.js and npm: apt-get install nodejs npm")
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return node{dir: dir}
}

// command prepares a script of testdata, in its own working directory.
func (n node) command(ctx context.Context, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "node", append([]string{filepath.Join(n.dir, script)}, args...)...)
	cmd.Dir = n.dir
	return cmd
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
	var errout lab.SyncBuffer
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, &errout
	if err := errors.Join(w.Net.Gateway().Start(cmd), in.Close()); err != nil {
		return err
	}
	dec := json.NewDecoder(out)
	for err == nil {
		err = each(dec)
	}
	if !errors.Is(err, io.EOF) {
		_, _ = io.Copy(io.Discard, out) // so that the script can end
	}
	if ended := cmd.Wait(); ended != nil {
		return errors.Join(ended, errors.New(errout.String()))
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
