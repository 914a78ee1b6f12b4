package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/launcher/image/agents"
)

// packed returns an archive as npm publishes it, with one file.
func packed(t *testing.T, name string, kind byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	hdr := &tar.Header{Name: name, Mode: 0o644, Typeflag: kind}
	if kind == tar.TypeReg {
		hdr.Size = int64(len("program"))
	} else {
		hdr.Linkname = "/etc/passwd"
	}
	err := w.WriteHeader(hdr)
	if err == nil && kind == tar.TypeReg {
		_, err = w.Write([]byte("program"))
	}
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// serveAgents serves archives by the path of their package, with documents of a digest.
func serveAgents(t *testing.T, archive []byte, digest string) {
	t.Helper()
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".tgz") {
			_, _ = w.Write(archive)
			return
		}
		fmt.Fprintf(w, `{"dist": {"integrity": "sha512-%s"}}`, digest)
	}))
	t.Cleanup(registry.Close)
	t.Setenv("npm_config_registry", registry.URL)
}

// TestProgramsOfAgentsAreThePublishedOnes: the programs of agents are compared with the pinned digests, or, for another version, with
// the one that the registry names.
func TestProgramsOfAgentsAreThePublishedOnes(t *testing.T) {
	archive := packed(t, "package/bin/opencode", tar.TypeReg)
	sum := sha512.Sum512(archive)
	right := base64.StdEncoding.EncodeToString(sum[:])
	others := map[string]string{"claude-code": "9.9.9", "codex": "9.9.9", "opencode": "9.9.9"}
	for name, c := range map[string]struct {
		versions map[string]string
		digest   string
		ok       bool
	}{
		"pinned":                      {nil, right, false},
		"one pinned":                  {map[string]string{"claude-code": "9.9.9"}, right, false},
		"others":                      {others, right, true},
		"others with a wrong digest":  {others, "AAAA", false},
		"others without a digest":     {others, "", false},
		"a version that is not exact": {map[string]string{"codex": "latest"}, right, false},
	} {
		serveAgents(t, archive, c.digest)
		dir := t.TempDir()
		list, err := Store{Agents: c.versions}.fetchAgents(t.Context(), dir, func(string) {})
		closeAll(list)
		if (err == nil) != c.ok || c.ok && len(list) != len(agents.Names()) {
			t.Errorf("%s: %d, %v", name, len(list), err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%s leaves %v, %v", name, left, err)
		}
	}
}

// TestInstalledAgent: the program of an archive is installed and in PATH; an archive without it is refused.
func TestInstalledAgent(t *testing.T) {
	nightly.Root(t)
	t.Parallel()
	p := agents.Program{Agent: "opencode", Command: "opencode", File: "bin/opencode"}
	for name, c := range map[string]struct {
		archive []byte
		ok      bool
	}{
		"complete":       {packed(t, "package/bin/opencode", tar.TypeReg), true},
		"without it":     {packed(t, "package/bin/other", tar.TypeReg), false},
		"a link instead": {packed(t, "package/bin/opencode", tar.TypeSymlink), false},
		"no archive":     {[]byte("no archive"), false},
	} {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if err := root.MkdirAll("usr/local/bin", 0o755); err != nil {
			t.Fatal(err)
		}
		err = installAgent(t.Context(), root, p, bytes.NewReader(c.archive))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if fi, err := root.Stat("usr/local/bin/opencode"); c.ok && (err != nil || fi.Mode().Perm() != 0o755) {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
		if err := root.Close(); err != nil {
			t.Error(err)
		}
	}
}
