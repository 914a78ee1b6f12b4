package boxgate_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// filesOf lists the Go files that a build with the tags compiles of a package.
func filesOf(t *testing.T, pkg, tags string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-tags", tags, "-f", `{{join .GoFiles "\n"}}`, pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// TestNoBuildWithoutTheHTTP2Implementation looks at a build with Go 1.27 or newer, whatever Go runs the test: without the
// tag http2legacy it has a file that does not compile, and with it golang.org/x/net/http2 is the implementation that the
// proxy is written for. A version of the module without that choice fails here.
func TestNoBuildWithoutTheHTTP2Implementation(t *testing.T) {
	const guard, http2 = "build_tag.go", "golang.org/x/net/http2"
	if !slices.Contains(filesOf(t, "./proxy/h2", "go1.27"), guard) {
		t.Errorf("a build without the tag does not compile proxy/h2/%s", guard)
	}
	if slices.Contains(filesOf(t, "./proxy/h2", "go1.27,http2legacy"), guard) {
		t.Errorf("a build with the tag compiles proxy/h2/%s", guard)
	}
	files := filesOf(t, http2, "go1.27,http2legacy")
	if !slices.Contains(files, "server.go") || !slices.Contains(files, "transport.go") || slices.Contains(files, "server_wrap.go") {
		t.Errorf("with the tag %s consists of %v", http2, files)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "\nexport GOFLAGS := $(GOFLAGS) -tags=http2legacy -trimpath\n") {
		t.Error("the Makefile does not set the tag for every build")
	}
}
