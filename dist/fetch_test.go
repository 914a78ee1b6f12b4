// Package dist has the tests of the scripts in this directory.
package dist

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"boxgate/internal/nightly"
)

// wanted are packages that share many dependencies with a developer's machine.
var wanted = []string{"haproxy", "slowhttptest", "testssl.sh"}

// TestPackagesDoNotDependOnWhatIsInstalled: fetch.sh finds the same packages whether or not their dependencies are
// installed.
func TestPackagesDoNotDependOnWhatIsInstalled(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	read(t, "fetch.sh") // so that a changed script invalidates the cached result
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("not a system of Debian packages")
	}
	if exec.CommandContext(t.Context(), "apt-cache", append([]string{"show", "--no-all-versions"}, wanted...)...).Run() != nil {
		t.Skip("apt has no lists of packages: run apt-get update")
	}
	names := fetched(t, machine(t, ""))
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not among what is fetched for it", name)
		}
	}
	if slices.Contains(names, "libc6") || !slices.Contains(names, "libssl3") && !slices.Contains(names, "libssl3t64") {
		t.Errorf("fetched are %v; want OpenSSL's library, and not that of C", names)
	}
	full := machine(t, with(t, names))
	simulated, err := under(t, full, "apt-get", append([]string{"-qq", "-s", "--no-install-recommends", "install"}, wanted...)...).Output()
	if err != nil || strings.Contains(string(simulated), "Inst "+wanted[0]+" ") {
		t.Fatalf("apt does not take %s for installed: %v\n%s", wanted[0], err, simulated)
	}
	if there := fetched(t, full); !slices.Equal(names, there) {
		t.Errorf("fetched on a bare machine: %v\nwhere all is installed: %v", names, there)
	}
}

// machine returns an apt configuration for a machine with these packages installed.
func machine(t *testing.T, status string) string {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf("Dir::State::status \"%s\";\nDir::Cache::pkgcache \"\";\nDir::Cache::srcpkgcache \"\";\n", filepath.Join(dir, "status"))
	for name, text := range map[string]string{"status": status, "apt.conf": config} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "apt.conf")
}

// with returns this machine's list of installed packages plus more.
func with(t *testing.T, names []string) string {
	t.Helper()
	status := read(t, "/var/lib/dpkg/status")
	out, err := exec.CommandContext(t.Context(), "apt-cache", append([]string{"show", "--no-all-versions"}, names...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for entry := range strings.SplitSeq(string(out), "\n\n") {
		name, rest, _ := strings.Cut(entry, "\n")
		if strings.HasPrefix(name, "Package: ") && !strings.Contains("\n"+status, "\n"+name+"\n") {
			status += "\n" + name + "\nStatus: install ok installed\n" + rest + "\n"
		}
	}
	return status
}

// fetched returns the names of the packages that fetch.sh would download.
func fetched(t *testing.T, apt string) []string {
	out, err := under(t, apt, "./fetch.sh", append([]string{"--list"}, wanted...)...).Output()
	if err != nil {
		t.Errorf("fetch.sh: %v", err)
	}
	return strings.Fields(string(out))
}

// under returns a command that uses an apt configuration.
func under(t *testing.T, apt, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+apt)
	cmd.Stderr = t.Output()
	return cmd
}

// TestPackagesAreFetchedInOneWay: packages for this machine are downloaded by fetch.sh, packages of any architecture
// without dependencies by download.sh, and the additions to the image of boxes by clients.sh and firewalls.sh, from the
// image's own package list.
func TestPackagesAreFetchedInOneWay(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("*.sh")
	if err != nil || !slices.Contains(scripts, "fetch.sh") {
		t.Fatal(scripts, err)
	}
	for _, path := range scripts {
		if slices.Contains([]string{"fetch.sh", "download.sh", "clients.sh", "firewalls.sh"}, path) {
			continue
		}
		text := read(t, path)
		for _, way := range []string{"apt-get download", "apt-get -qq download", " install -s", "-s install", "download-only", "print-uris"} {
			if strings.Contains(text, way) {
				t.Errorf("%s fetches packages by %q; fetch.sh is for that", path, way)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
