package dist

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestInstallVerifies: install.sh uses only the file that the release lists, and over HTTP only a release whose checksum
// it was given.
func TestInstallVerifies(t *testing.T) {
	t.Parallel()
	read(t, "install.sh") // so that a changed script invalidates the cached result
	release := t.TempDir()
	name := "gateway-linux-" + runtime.GOARCH
	if _, err := exec.LookPath("dpkg"); err == nil {
		name = "boxgate_1.2.3~rc.1_" + runtime.GOARCH + ".deb"
	}
	sums := fmt.Sprintf("%x  gateway-linux-mips\n%x  boxgate-demo_1.2.3~rc.1_%s.deb\n%x  %s\n",
		sha256.Sum256([]byte("other")), sha256.Sum256([]byte("demo")), runtime.GOARCH, sha256.Sum256([]byte("good")), name)
	for file, text := range map[string]string{"SHA256SUMS": sums, name: "good"} {
		put(t, filepath.Join(release, file), text)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(release)))
	defer server.Close()
	pin := fmt.Sprintf("%x", sha256.Sum256([]byte(sums)))
	otherPin := fmt.Sprintf("%x", sha256.Sum256([]byte(sums+"\n")))

	install := func(want string, args ...string) {
		t.Helper()
		to := t.TempDir()
		out, err := exec.CommandContext(t.Context(), "./install.sh", append([]string{"--download", to}, args...)...).CombinedOutput()
		got, _ := os.ReadFile(filepath.Join(to, name)) // absent if it was refused
		if want == "" && (err != nil || string(got) != "good") || want != "" && (err == nil || len(got) > 0 || !strings.Contains(string(out), want)) {
			t.Errorf("%q: want %q, got %q, %v: %s", args, want, got, err, out)
		}
	}
	install("", release)
	install("", release+"/", pin)
	install("", server.URL, pin)
	install("http:// does not protect", server.URL)
	install("not the expected file", release, otherPin)
	install("not the expected file", server.URL, otherPin)
	install("only https://", "ftp://localhost/release", pin)
	install("is not a release", t.TempDir())
	install("cannot download", server.URL+"/none", pin)
	put(t, filepath.Join(release, name), "evil")
	install("its checksum differs", release)
	install("its checksum differs", server.URL, pin)
	put(t, filepath.Join(release, "SHA256SUMS"), strings.ReplaceAll(sums, runtime.GOARCH, "mips"))
	install("nothing for this machine", release)
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
