package fidelity

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/e2e/harness"
)

// TestFidelityGit clones from and pushes to a repository on a server. The gateway sets the key.
func TestFidelityGit(t *testing.T) {
	t.Parallel()
	f := newFidelity(t, nil)
	root := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+root)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	bare := filepath.Join(root, "repo.git")
	git("init", "-q", "--bare", "-b", "main", bare)
	git("-C", bare, "config", "http.receivepack", "true")
	f.page("/git", harness.GitServer(t, root, "/git").ServeHTTP)
	// Over HTTP/1.1 the file is large enough for git to send a probe request first and its pack in chunks
	// (http.postBuffer is 1 MiB). Over HTTP/2 the pack fits into a stream's first window: otherwise curl 7.88.1 of
	// Debian 12 occasionally sends some bytes twice, without a gateway as well (docs/conformance.md).
	for i, r := range []route{overHTTP1, overHTTP2, overDowngrade, overPlain} {
		version, size := "HTTP/1.1", 3_000_000
		if r.h2 {
			version, size = "HTTP/2", 40_000
		}
		f.run(fmt.Sprintf(`set -e; export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=user.email GIT_CONFIG_VALUE_0=a@example.com GIT_CONFIG_KEY_1=user.name GIT_CONFIG_VALUE_1=a
export GIT_CONFIG_KEY_2=http.version GIT_CONFIG_VALUE_2=%s
cd /tmp; rm -rf work again; git clone -q %s/git/repo.git work 2>/dev/null; cd work; git checkout -q -B main
head -c %d /dev/urandom >file%d; git add .; git commit -qm 'change %d'; git push -q origin main
git clone -q %s/git/repo.git ../again; cmp file%d ../again/file%d; git fetch -q --depth 1 origin main`, version, r.url, size, i, i, r.url, i, i))
	}
	if log := git("-C", bare, "log", "--format=%s", "main"); log != "change 3\nchange 2\nchange 1\nchange 0" {
		t.Errorf("the server has:\n%s", log)
	}
	git("-C", bare, "fsck", "--strict")
}
