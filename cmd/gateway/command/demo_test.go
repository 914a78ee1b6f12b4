package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDemoIsWhatOnlyTrustedUsersCanChange: the program next to the gateway is accepted as the demo only if it is a
// regular file, and if it and its folder are owned by a trusted user and writable only by that user.
func TestDemoIsWhatOnlyTrustedUsersCanChange(t *testing.T) {
	t.Parallel()
	me := uint32(os.Geteuid())
	for _, c := range []struct {
		name, refused string // "": accepted
		spoil         func(dir, program string) error
		owners        []uint32
	}{
		{"as installed", "", func(_, _ string) error { return nil }, []uint32{me}},
		{"missing", "there is no ", func(_, p string) error { return os.Remove(p) }, []uint32{me}},
		{"another user's", "belongs to user", func(_, _ string) error { return nil }, []uint32{me + 1}},
		{"writable by a group", "others may write to", func(_, p string) error { return os.Chmod(p, 0o775) }, []uint32{me}},
		{"writable by all", "others may write to", func(_, p string) error { return os.Chmod(p, 0o757) }, []uint32{me}},
		{"folder writable by all", "others may write to", func(dir, _ string) error { return os.Chmod(dir, 0o757) }, []uint32{me}},
		{"folder writable by all, sticky", "others may write to", func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, []uint32{me}},
		{"link", "is not a regular file", func(_, p string) error {
			if err := os.Rename(p, p+".real"); err != nil {
				return err
			}
			return os.Symlink(p+".real", p)
		}, []uint32{me}},
		{"folder", "is not a regular file", func(_, p string) error {
			if err := os.Remove(p); err != nil {
				return err
			}
			return os.Mkdir(p, 0o755)
		}, []uint32{me}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			program := filepath.Join(dir, demoProgram)
			err := errors.Join(os.WriteFile(program, nil, 0o755), os.Chmod(program, 0o755), os.Chmod(dir, 0o755), c.spoil(dir, program))
			if err != nil {
				t.Fatal(err)
			}
			folder, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(folder)
			err = checkDemo(folder, dir, c.owners)
			if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused) || goText.MatchString(err.Error())) {
				t.Errorf("%v; want %q", err, c.refused)
			}
		})
	}
}
