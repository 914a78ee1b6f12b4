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

// setUpFiles sets up the command's view of the file system, in the mount namespace of this process.
func setUpFiles(s Spec) error {
	files, err := resolveFiles(s)
	if err != nil {
		return err
	}
	if s.State != "" {
		if err := unix.Unmount(s.State, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("letting go of %s: %w", s.State, err)
		}
	}
	if err := hideOtherProcesses(); err != nil {
		return err
	}
	if err := hideQueues(); err != nil {
		return err
	}
	if err := hideRun(s); err != nil {
		return fmt.Errorf("/run: %w", err)
	}
	for i, f := range files {
		if err := showFile(f, i); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	for _, path := range s.Sockets {
		if err := hideSocket(s, path); err != nil {
			return err
		}
	}
	if err := hideDevices(hiddenDevices); err != nil {
		return err
	}
	for _, path := range s.Hidden {
		if err := hideEverywhere(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// hideDevices covers devices in every mount that shows them, such as one for a chroot.
func hideDevices(paths []string) error {
	for _, path := range paths {
		if err := hideEverywhere(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// hiddenDevices allow users with access to them (root, and members of groups such as kvm) to bypass the filter of system
// calls. A virtual machine's end of vsock reaches the host's, a virtual keyboard types into the host's terminals, and
// userfaultfd has a device too.
var hiddenDevices = []string{"/dev/vhost-vsock", "/dev/uinput", "/dev/uhid", "/dev/userfaultfd"}

// resolveFiles resolves symbolic links before any of the host's files are hidden, and drops files that the host lacks.
func resolveFiles(s Spec) ([]File, error) {
	var out []File
	seen := map[string]bool{}
	for _, f := range s.Files {
		path, err := filepath.EvalSymlinks(f.Path)
		switch {
		case f.Always:
			path = f.Path
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		}
		if !seen[path] {
			out = append(out, File{Path: path, Content: f.Content})
		}
		seen[path] = true
	}
	return out, nil
}

// hideOtherProcesses replaces /proc, and covers every other mount of that type: through them the command could change other
// processes of its user. Files that let root change the kernel become read-only.
func hideOtherProcesses() error {
	others, err := mountsOf("proc")
	if err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	for _, at := range others {
		if at == "/proc" || strings.HasPrefix(at, "/proc/") {
			continue
		}
		if err := hide(at); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	for _, path := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"} {
		if err := makeReadOnly(path); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/sys", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("/sys: %w", err)
	}
	return nil
}

// hideQueues replaces every mount of the host's POSIX message queues by the queues of the command's own namespace.
func hideQueues() error {
	views, err := mountsOf("mqueue")
	for _, at := range views {
		if err = errors.Join(err, unix.Mount("mqueue", at, "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return err
}

// makeReadOnly makes a file or directory read-only. A missing one is not an error.
func makeReadOnly(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// mountsOf returns the mount points of a type of file system.
func mountsOf(kind string) ([]string, error) {
	all, err := mounts()
	var out []string
	for _, m := range all {
		if m.kind == kind {
			out = append(out, m.at)
		}
	}
	return out, err
}

// unescape decodes the octal escapes of mountinfo.
func unescape(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if c, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

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

// This process has every privilege, and covers files in directories that others can write to. A user who replaces a name by
// a link must not be able to choose the file that is changed. So a file is opened once, and everything after that uses the
// descriptor. Mounts get their owner and mode when they are mounted: no file of the host is ever changed.

// emptyFile replaces a hidden file: it is empty, and only root can open it.
const emptyFile = Private + "/nothing"

// place is a file or directory of the host, held open even if its name changes.
type place struct {
	path string // original path
	fd   int
	stat unix.Stat_t
}

// openPlace opens a path relative to a directory. flags are flags of open(2) in addition to O_PATH.
func openPlace(dir int, path string, flags int) (place, error) {
	p := place{path: path}
	for {
		var err error
		if p.fd, err = unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC|flags, 0); err == nil {
			break
		}
		if err != unix.EINTR { // EINTR: the runtime's own signals cause it in FUSE file systems
			return place{}, err
		}
	}
	if err := unix.Fstat(p.fd, &p.stat); err != nil {
		p.close()
		return place{}, err
	}
	return p, nil
}

func (p place) close() { _ = unix.Close(p.fd) }

func (p place) hasType(kind uint32) bool { return p.stat.Mode&unix.S_IFMT == kind }

// name returns a path that leads to the place, even if its original path leads elsewhere.
func (p place) name() string { return "/proc/self/fd/" + strconv.Itoa(p.fd) }

// cover hides a file.
func (p place) cover() error { return unix.Mount(emptyFile, p.name(), "", unix.MS_BIND, "") }

// hide covers a file or a directory. A missing one is not an error.
func hide(path string) error {
	p, err := openPlace(unix.AT_FDCWD, path, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	defer p.close()
	return p.hide()
}

// hideSocket covers a socket, if it still exists, so that programs of the command do not find it and start their own
// server. It is package connect that prevents connections. If root may not look, as in a file system that belongs to a user
// (FUSE) or comes from another host (NFS), hideSocket looks as the command's user.
func hideSocket(s Spec, path string) error {
	h, err := openSocket(path)
	if err != nil && !isGone(err) && s.UID != 0 {
		err = asUser(s, func() (err error) { h, err = openSocket(path); return err })
		if errors.Is(err, unix.EACCES) {
			return nil // the command, with the same rights, cannot reach it either
		}
	}
	switch {
	case isGone(err):
		return nil // or covered already
	case err != nil:
		return fmt.Errorf("cannot check whether the command could reach the host's socket %q: %w; remove the socket, or unmount its file system", path, err)
	}
	defer h.close()
	named, beside := h.matchPaths(s.AllowedSockets)
	switch {
	case named:
		return nil
	case beside:
		err = h.socket.cover()
	default:
		err = h.cover()
	}
	if err != nil && !errors.Is(err, unix.ENOENT) { // ENOENT: removed since
		return fmt.Errorf("%q: %w", path, err)
	}
	return nil
}

// matchPaths reports whether one of the paths leads to the socket, and whether one leads to another socket in the same
// directory.
func (h openedSocket) matchPaths(paths []string) (named, beside bool) {
	for _, path := range paths {
		var socket, dir unix.Stat_t
		if err := errors.Join(unix.Lstat(path, &socket), unix.Stat(filepath.Dir(path), &dir)); err != nil {
			continue
		}
		named = named || socket.Dev == h.socket.stat.Dev && socket.Ino == h.socket.stat.Ino
		beside = beside || dir.Dev == h.dir.stat.Dev && dir.Ino == h.dir.stat.Ino
	}
	return named, beside
}

// isGone reports whether the error means that a path leads nowhere, for any user. That includes links in a circle, which
// the owner of a socket can create.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// openedSocket is a socket and its directory.
type openedSocket struct{ dir, socket place }

// openSocket opens the socket at a path. A file of another type counts as missing.
func openSocket(path string) (h openedSocket, err error) {
	dir, name := filepath.Split(path) // unlike filepath.Dir, Split keeps "..", which may follow a link
	if h.dir, err = openPlace(unix.AT_FDCWD, dir, unix.O_DIRECTORY); err != nil {
		return h, err
	}
	if h.socket, err = openPlace(h.dir.fd, name, unix.O_NOFOLLOW); err != nil {
		h.dir.close()
		return h, err
	}
	h.socket.path = path
	if !h.socket.hasType(unix.S_IFSOCK) {
		h.close()
		return h, unix.ENOENT
	}
	return h, nil
}

func (h openedSocket) close() {
	h.socket.close()
	h.dir.close()
}

// cover hides the socket. A directory that contains only sockets, as for tmux, ssh-agent and X11, is covered as a
// whole, so that the command can create its own sockets there.
func (h openedSocket) cover() error {
	if h.dir.stat.Mode&unix.S_ISVTX != 0 || !h.dir.hasOnlySockets() { // shared like /tmp, or with files
		return h.socket.cover()
	}
	return h.dir.coverAlike()
}

// coverAlike covers a directory by an empty one with the same owner and mode.
func (p place) coverAlike() error {
	options := fmt.Sprintf("mode=%o,uid=%d,gid=%d,size=1m", p.stat.Mode&0o7777, p.stat.Uid, p.stat.Gid)
	return unix.Mount("tmpfs", p.name(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
}

func (p place) hasOnlySockets() bool {
	entries, err := os.ReadDir(p.name())
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Type() != os.ModeSocket {
			return false
		}
	}
	return true
}

// Most daemons have their sockets below /run, and create them again when they restart. So the command gets an empty /run,
// with the files to keep, and the directories that programs expect there.

// runOptions limit how much the command can write there.
const runOptions = "mode=0755,size=20%,nr_inodes=100k"

// clonedTree is a file or directory of the host's /run, held open while /run is covered.
type clonedTree struct {
	path string
	fd   int
	dir  bool
}

func hideRun(s Spec) error {
	kept, err := cloneTrees(append(s.KeepRun, s.AllowedSockets...))
	if err != nil {
		return err
	}
	links := linksIn("/run")
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, runOptions); err != nil {
		return err
	}
	for path, target := range links {
		if err := os.Symlink(target, path); err != nil {
			return err
		}
	}
	if err := errors.Join(os.MkdirAll(Private, 0o755), os.WriteFile(emptyFile, nil, 0), os.Chmod("/run", 0o755)); err != nil {
		return err
	}
	if err := makeUserDir(s); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir("/run/lock", 0o755), os.Chmod("/run/lock", 0o1777)); err != nil {
		return err
	}
	for _, k := range kept {
		if err := k.mount(); err != nil {
			return fmt.Errorf("%s: %w", k.path, err)
		}
	}
	return nil
}

// makeUserDir makes the usual directory of XDG_RUNTIME_DIR.
func makeUserDir(s Spec) error {
	dir := filepath.Join("/run/user", strconv.Itoa(s.UID))
	return errors.Join(os.MkdirAll("/run/user", 0o755), os.Mkdir(dir, 0o700), os.Chown(dir, s.UID, s.GID))
}

// linksIn returns the symbolic links in a directory.
func linksIn(dir string) map[string]string {
	out := map[string]string{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if target, err := os.Readlink(path); err == nil {
			out[path] = target
		}
	}
	return out
}

func cloneTrees(paths []string) ([]clonedTree, error) {
	var out []clonedTree
	for _, path := range paths {
		if !isBelow(path, "/run") {
			continue
		}
		info, err := os.Lstat(path)
		if errors.Is(err, os.ErrNotExist) || err == nil && info.Mode().Type() == os.ModeSymlink {
			continue // links are copied anyway
		}
		if err != nil {
			return nil, err
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, clonedTree{path, fd, info.IsDir()})
	}
	return out, nil
}

// mount mounts the tree at its original path.
func (k clonedTree) mount() error {
	defer unix.Close(k.fd)
	if err := makeMountPoint(k.path, k.dir); err != nil {
		return err
	}
	return unix.MoveMount(k.fd, "", unix.AT_FDCWD, k.path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// makeMountPoint makes an empty file or directory, unless it exists.
func makeMountPoint(path string, dir bool) error {
	if dir {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// isBelow reports whether a path is in a directory.
func isBelow(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// showFile replaces a file of the host by a file with other content.
func showFile(f File, i int) error {
	if isBelow(f.Path, "/run") {
		if err := makeMountPoint(f.Path, false); err != nil {
			return err
		}
		return os.WriteFile(f.Path, f.Content, 0o644)
	}
	own := filepath.Join(Private, "file-"+strconv.Itoa(i))
	if err := os.WriteFile(own, f.Content, 0o644); err != nil {
		return err
	}
	if err := unix.Mount(own, f.Path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", f.Path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}
