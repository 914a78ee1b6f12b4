package dist

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestInstallVerifies: install.sh uses only the file that the release lists, and over HTTP only a release whose checksum
// it was given.
func TestInstallVerifies(t *testing.T) {
	t.Parallel()
	read(t, "install.sh") // so that a changed script invalidates the cached result
	release := t.TempDir()
	name := "boxgate_1.2.3~rc.1_" + runtime.GOARCH + ".deb"
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
		out, err := download(t, "deb", to, args...)
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

// TestInstallTakesTheSystemsFormat: Debian packages where dpkg manages the system, RPM packages where rpm does, and the
// program elsewhere, also if the other's tools are installed.
func TestInstallTakesTheSystemsFormat(t *testing.T) {
	t.Parallel()
	read(t, "install.sh") // so that a changed script invalidates the cached result
	release := t.TempDir()
	rpm := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}
	names := map[string]string{
		"deb": "boxgate_1.2.3~rc.1_" + runtime.GOARCH + ".deb", "rpm": "boxgate-1.2.3~rc.1-1." + rpm[runtime.GOARCH] + ".rpm",
		"binary": "gateway-linux-" + runtime.GOARCH,
	}
	var sums strings.Builder
	for _, name := range slices.Concat(slices.Collect(maps.Values(names)), []string{"boxgate-demo-1.2.3~rc.1-1." + rpm[runtime.GOARCH] + ".rpm", "boxgate-1.2.3~rc.1-1.riscv64.rpm"}) {
		put(t, filepath.Join(release, name), name)
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte(name)), name)
	}
	put(t, filepath.Join(release, "SHA256SUMS"), sums.String())
	for format, name := range names {
		to := t.TempDir()
		out, err := download(t, format, to, release)
		if got, _ := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != name {
			t.Errorf("%s: %v: %s", format, err, out)
		}
	}
}

// download runs install.sh --download on a system of the format deb, rpm or binary.
func download(t *testing.T, format, to string, args ...string) ([]byte, error) {
	t.Helper()
	bin := t.TempDir()
	for tool, of := range map[string]string{"dpkg-query": "deb", "rpm": "rpm"} {
		status := 1
		if of == format {
			status = 0
		}
		if err := os.WriteFile(filepath.Join(bin, tool), fmt.Appendf(nil, "#!/bin/sh\nexit %d\n", status), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "./install.sh", append([]string{"--download", to}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	return cmd.CombinedOutput()
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
