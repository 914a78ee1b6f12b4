package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A kernel limit that is too low for boxes causes a warning that states the setting to write; it does not fail the check.
func TestCheckWarnsOfScarceKernelSupplies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	set := func(file, value string) {
		t.Helper()
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := CheckSupplies(dir); err != nil {
		t.Errorf("a kernel without limits: %v", err)
	}
	for _, s := range kernelSupplies {
		set(s.file, "9223372036854775807")
	}
	if err := CheckSupplies(dir); err != nil {
		t.Errorf("plenty: %v", err)
	}
	for _, file := range []string{"kernel/pid_max", "fs/inotify/max_user_instances", "fs/file-max", "fs/aio-max-nr"} {
		set(file, "100")
		key := strings.ReplaceAll(file, "/", ".")
		err := CheckSupplies(dir)
		if err == nil || !strings.Contains(err.Error(), key+" is 100") || !strings.Contains(err.Error(), key+" = ") {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, lack := range Errors(err) {
			if _, ok := lack.(Warning); !ok { //nolint:errorlint // not wrapped: it is what Errors returns
				t.Errorf("%s is not a warning", file)
			}
		}
	}
}
