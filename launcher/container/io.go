package container

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ForDir returns the limits for the disk of a directory. The kernel limits whole disks, not partitions.
func (io IO) ForDir(dir string) (IO, error) {
	if io == (IO{}) {
		return io, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return io, err
	}
	device := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	at, err := filepath.EvalSymlinks(device)
	if err != nil {
		return io, fmt.Errorf("launcher.io: %s is not on a disk that the kernel can limit (no %s); remove launcher.io, or move state_dir", dir, device)
	}
	if _, err := os.Stat(filepath.Join(at, "partition")); err == nil {
		at = filepath.Dir(at)
	}
	number, err := os.ReadFile(filepath.Join(at, "dev"))
	if err == nil {
		_, err = fmt.Sscanf(strings.TrimSpace(string(number)), "%d:%d", &io.Major, &io.Minor)
	}
	if err != nil {
		return io, fmt.Errorf("launcher.io: the disk of %s: %w", dir, err)
	}
	return io, nil
}
