package harness

import (
	"bytes"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// GitServer serves the git repositories below a directory by git's own program (git-http-backend(1)), at paths below prefix. Those with
// http.receivepack accept pushes.
func GitServer(t *testing.T, dir, prefix string) http.Handler {
	t.Helper()
	programs, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	if err != nil {
		t.Fatalf("git --exec-path: %v", err)
	}
	backend := filepath.Join(strings.TrimSpace(string(programs)), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		t.Fatalf("git's HTTP backend is missing: apt-get install git (%v)", err)
	}
	smart := &cgi.Handler{
		Path: backend, Root: prefix, Dir: dir, Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // CGI has no chunks
		if err != nil {
			return
		}
		r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		smart.ServeHTTP(w, r)
	})
}
