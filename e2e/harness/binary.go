package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// binaryVariable is the environment variable with the path of the gateway under test, as printed by
// dist/test-gateway.sh. The path contains a hash of the content. `go test` records the variables that a test reads, so
// it does not reuse the cached result for another gateway. If the variable is not set, the harness builds the gateway.
const binaryVariable = "GATEWAY_TEST_BINARY"

// Gateway returns the path of the gateway under test. If it cannot be built, no test of the package can run, so Gateway
// exits the process instead of failing a test.
func Gateway() string {
	path, err := gateway()
	if err != nil {
		fmt.Fprintln(os.Stderr, "the gateway under test cannot be built:", err)
		os.Exit(1)
	}
	return path
}

var gateway = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(binaryVariable); path != "" {
		return path, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	if err := dependOnSources(root); err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(root, "dist", "test-gateway.sh"))
	if RaceDetector() {
		cmd.Args = append(cmd.Args, "-race")
	}
	out, err := output(cmd)
	return strings.TrimSpace(out), err
})

// moduleRoot returns the directory of go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("this is not in a module")
		}
	}
	return "", err
}

// dependOnSources makes `go test` cache this run's result only for the present sources of the gateway and the demo, by
// opening them: it records the files and directories of the module that a test opens.
func dependOnSources(root string) error {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if and .Module .Module.Main}}{{.Dir}}{{range .EmbedFiles}}\n{{$.Dir}}/{{.}}{{end}}{{end}}", "./e2e/harness/gateway", "./cmd/gateway-demo")
	cmd.Dir = root
	out, err := output(cmd)
	if err != nil {
		return err
	}
	for _, path := range append(strings.Fields(out), filepath.Join(root, "go.mod"), filepath.Join(root, "go.sum")) {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// output returns the standard output of a command. The error contains its standard error.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, exit.Stderr)
	}
	return string(out), err
}
