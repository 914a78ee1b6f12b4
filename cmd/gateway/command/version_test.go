package command

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"boxgate/cmd/gateway/command/cli"
	"boxgate/internal/buildinfo"
)

// TestVersion: the flag, the command and its JSON report the same version.
func TestVersion(t *testing.T) {
	said := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		root := newRootCommand(&cli.Options{})
		root.SetArgs(args)
		root.SetOut(&out)
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	line := said("--version")
	if !strings.HasPrefix(line, "gateway ") || !strings.Contains(line, runtime.Version()) || line != said("version") {
		t.Errorf("--version says %q, version %q", line, said("version"))
	}
	var b buildinfo.Info
	if err := json.Unmarshal([]byte(said("version", "--json")), &b); err != nil || b != buildinfo.Get() || b.Version == "" || b.Revision == "" {
		t.Errorf("as JSON: %+v %v", b, err)
	}
	buildinfo.Version, buildinfo.Revision = "v1.2.3", "abc"
	defer func() { buildinfo.Version, buildinfo.Revision = "", "" }()
	if line := said("--version"); !strings.HasPrefix(line, "gateway v1.2.3 (revision abc, ") {
		t.Errorf("with what the linker set: %q", line)
	}
}
