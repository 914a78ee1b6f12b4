package inside

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is a line of mountinfo(5).
type mount struct {
	id       int
	dev      string // of the file system, as MAJOR:MINOR
	root, at string // the directory or file of the file system that is mounted, and the mount point
	kind     string
}

// MountPoint is a mounted file system.
type MountPoint struct{ At, Kind string }

// MountPoints returns the mounts in a file in the format of mountinfo(5).
func MountPoints(mountinfo string) ([]MountPoint, error) {
	all, err := mountsIn(mountinfo)
	var out []MountPoint
	for _, m := range all {
		out = append(out, MountPoint{m.at, m.kind})
	}
	return out, err
}

// mounts returns the mounts that this thread sees.
func mounts() ([]mount, error) { return mountsIn("/proc/thread-self/mountinfo") }

func mountsIn(mountinfo string) ([]mount, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []mount
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line, super, ok := strings.Cut(lines.Text(), " - ")
		fields, types := strings.Fields(line), strings.Fields(super)
		if !ok || len(fields) < 5 || len(types) == 0 {
			return nil, fmt.Errorf("%s cannot be read", mountinfo)
		}
		id, err := strconv.Atoi(fields[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", mountinfo, err)
		}
		out = append(out, mount{id: id, dev: fields[2], root: unescape(fields[3]), at: unescape(fields[4]), kind: types[0]})
	}
	return out, lines.Err()
}

// hideEverywhere covers a file or a directory in every mount that shows it. A missing one is not an error. A file with
// several names (hard links) is refused, because the other names cannot be found.
func hideEverywhere(path string) error {
	p, err := openPlace(unix.AT_FDCWD, path, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	defer p.close()
	if !p.hasType(unix.S_IFDIR) && p.stat.Nlink > 1 {
		return fmt.Errorf("the file has %d names (hard links), and the command could read it under another one: use a file with a single name", p.stat.Nlink)
	}
	all, err := mounts()
	if err != nil {
		return err
	}
	own, err := p.mount(all)
	if err != nil {
		return err
	}
	at, err := os.Readlink(p.name())
	if err != nil {
		return err
	}
	inside := filepath.Join(own.root, strings.TrimPrefix(at, own.at)) // its path in the file system
	covered := false
	for _, m := range all {
		if m.dev != own.dev {
			continue
		}
		did, err := p.hideIn(m, inside)
		if err != nil {
			return fmt.Errorf("as it is shown below %s: %w", m.at, err)
		}
		covered = covered || did && m.id == own.id
	}
	if !covered {
		return errors.New("it was moved while it was being hidden")
	}
	return nil
}

// mount returns the mount through which the place was opened.
func (p place) mount(all []mount) (mount, error) {
	var st unix.Statx_t
	if err := unix.Statx(p.fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return mount{}, err
	}
	for _, m := range all {
		if uint64(m.id) == st.Mnt_id && st.Mask&unix.STATX_MNT_ID != 0 {
			return m, nil
		}
	}
	return mount{}, errors.New("its mount is not in /proc/self/mountinfo, as in a chroot, so other mounts of it cannot be found: start gateway run outside of the chroot")
}

// hideIn covers the place in one mount of its file system; path is its path in the file system. A mount of a part of the
// directory is covered as a whole. hideIn reports whether the mount showed the place itself. A mount hidden below another
// one at the same path is skipped: the command cannot reach it either.
func (p place) hideIn(m mount, path string) (bool, error) {
	at, part := m.at, false
	switch rest, ok := strings.CutPrefix(path, strings.TrimSuffix(m.root, "/")); {
	case ok && (rest == "" || rest[0] == '/'):
		at = filepath.Join(m.at, rest)
	case p.hasType(unix.S_IFDIR) && isBelow(m.root, path):
		part = true
	default:
		return false, nil
	}
	shown, err := openPlace(unix.AT_FDCWD, at, unix.O_NOFOLLOW)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer shown.close()
	same := shown.stat.Dev == p.stat.Dev && shown.stat.Ino == p.stat.Ino
	if part {
		visible, err := shown.mount([]mount{m})
		same = err == nil && visible.id == m.id
	}
	if !same {
		return false, nil
	}
	return !part, shown.hide()
}

// hide covers the place by an empty file or directory.
func (p place) hide() error {
	if p.hasType(unix.S_IFDIR) {
		return unix.Mount("tmpfs", p.name(), "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "mode=0555,size=4k")
	}
	return p.cover()
}
