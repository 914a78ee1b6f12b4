package preflight

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckSaysWhatARuntimeLacks(t *testing.T) {
	t.Parallel()
	groups := func(files map[string]string) string {
		root := t.TempDir()
		for name, text := range files {
			path := filepath.Join(root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		return root
	}
	v1 := groups(nil)
	v2 := groups(map[string]string{"cgroup.controllers": "cpu memory pids\n"})
	empty := groups(map[string]string{"unified/cgroup.controllers": "\n"})
	hybrid := groups(map[string]string{"unified/cgroup.controllers": "hugetlb\n"})
	for _, tt := range []struct {
		name, cgroups, says string
		warns               bool
	}{
		{"runc", hybrid, "", false}, {"crun", v2, "", false},
		{"crun", hybrid, "hugetlb", true}, {"crun", v1, "CPU time", true}, {"crun", empty, "CPU time", true},
		{"runsc", v2, "loopback", true}, {"youki", v2, "not among", true},
	} {
		err := runtimeLacks(tt.name, tt.cgroups)
		var warning Warning
		if (err == nil) != (tt.says == "") || err != nil && (!strings.Contains(err.Error(), tt.says) || errors.As(err, &warning) != tt.warns) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
	}
	if err := needRuntime("/no/such/runsc"); err == nil || !strings.Contains(err.Error(), "make runsc") {
		t.Errorf("a gVisor that is missing: %v", err)
	}
}
