// Package npm runs scripts for Node.js against a gateway, with the npm packages that a lock file pins.
package npm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// Folder is a temporary copy of a folder of scripts, with the packages that its package-lock.json names.
type Folder struct{ Dir string }

// Copy copies a folder and installs its packages. The copy is removed at the end of the test.
func Copy(t *testing.T, from string) Folder {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatal("this test needs Node.js and npm: apt-get install nodejs npm")
		}
	}
	f := Folder{t.TempDir()}
	f.Add(t, from, ".")
	f.install(t, ".")
	return f
}

// Add copies another folder into the folder, whose packages its scripts can then import.
func (f Folder) Add(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(f.Dir, to), os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func (f Folder) install(t *testing.T, in string) {
	t.Helper()
	install := exec.CommandContext(t.Context(), "npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
	install.Dir = filepath.Join(f.Dir, in)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
}

// Command prepares a script of the folder, in the folder.
func (f Folder) Command(ctx context.Context, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "node", append([]string{filepath.Join(f.Dir, script)}, args...)...)
	cmd.Dir = f.Dir
	return cmd
}

// Shapes installs the compiler of the folder's types, and writes the parameters and results of a package's methods to a file, whose
// path it returns. Without classes they are those of @upstash/box.
func (f Folder) Shapes(t *testing.T, pkg string, classes ...string) string {
	t.Helper()
	f.install(t, "types")
	path := filepath.Join(f.Dir, "shapes.json")
	if err := os.WriteFile(path, f.ShapesOf(t, filepath.Join(f.Dir, "node_modules", pkg), classes...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ShapesOf reads the types of a package. The compiler must be installed.
func (f Folder) ShapesOf(t *testing.T, dir string, classes ...string) []byte {
	t.Helper()
	read := f.Command(t.Context(), "types/shape.mjs", append([]string{filepath.Join(dir, "dist/index.d.ts")}, classes...)...)
	out, err := read.Output()
	if err != nil {
		t.Fatalf("the SDK's types are not readable: %v\n%s", err, out)
	}
	return out
}

// Lines runs a command in a namespace and calls each for every line of JSON that it prints.
func Lines(in *testnet.NS, cmd *exec.Cmd, each func(*json.Decoder) error) error {
	var errout lab.SyncBuffer
	out, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = write, &errout
	if err := errors.Join(in.Start(cmd), write.Close()); err != nil {
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
