package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/nightly"
)

// Root reads no configuration that another user owns or can change, not even through a link.
func TestAttackConfigurationOfAnotherUser(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	for _, c := range []struct {
		uid  int
		mode os.FileMode
		why  string
	}{
		{0, 0o600, ""}, {0, 0o644, ""}, {0, 0o640, ""}, {47110, 0o600, "belongs to user 47110"}, {47110, 0o444, "belongs to user 47110"},
		{0, 0o664, "chmod go-w"}, {0, 0o646, "chmod go-w"},
	} {
		path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte("state_dir: /var/lib/other\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, c.uid, c.uid); err != nil {
			t.Fatal(err)
		}
		_ = os.Symlink("file", link)
		for _, name := range []string{path, link} {
			cfg, err := Load(name, nil)
			if c.why == "" && (err != nil || cfg.StateDir != "/var/lib/other") {
				t.Errorf("%+v: %v", c, err)
			}
			if c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why) || cfg.StateDir == "/var/lib/other") {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
	if _, err := Load(os.DevNull, nil); err != nil {
		t.Error(err)
	}
}
