package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/launcher/namespace"
)

// maxDepth is how deep directories may be nested: each level needs a descriptor while it is read.
const maxDepth = 256

// errTooDeep is reported to the client that requested the snapshot.
var errTooDeep = fmt.Errorf("the box has directories nested more than %d deep, which a snapshot cannot hold", maxDepth)

// entry is one name in a directory.
type entry struct {
	name string // "" for the top
	stat unix.Stat_t
}

func (e entry) regular() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFREG }

func (e entry) isDir() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// whiteout reports whether overlayfs created the entry to hide a file of a lower layer.
func (e entry) whiteout() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFCHR && e.stat.Rdev == 0 }

// visitor receives the entries of a tree.
type visitor struct {
	entry      func(dir *os.File, e entry) error // called for the top directory first, and for a directory before its entries
	leave      func() error                      // called after the entries of a directory; may be nil
	exclude    string                            // an entry of the top directory to skip; "": no entry
	changing   bool                              // the tree may change: vanished entries are skipped
	maxEntries int64                             // maximum number of entries
	seen       *int64                            // set by walk
}

// walk visits a tree.
func walk(ctx context.Context, top *os.File, v visitor) error {
	e := entry{}
	v.seen = new(int64)
	if err := unix.Fstat(int(top.Fd()), &e.stat); err != nil {
		return err
	}
	if err := v.entry(top, e); err != nil {
		return err
	}
	return v.visitDir(ctx, top, ".", e.stat.Dev, 0)
}

// visitDir visits the entries of a directory.
func (v visitor) visitDir(ctx context.Context, parent *os.File, name string, dev uint64, depth int) error {
	if depth == maxDepth {
		return errTooDeep
	}
	dir, err := openAt(parent, name, unix.O_DIRECTORY)
	if err != nil {
		return v.ignoreVanished(err)
	}
	defer dir.Close()
	for n, err := range namesIn(dir) {
		if err != nil {
			return v.ignoreVanished(err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if depth == 0 && n == v.exclude {
			continue
		}
		if err := v.visit(ctx, dir, n, dev, depth); err != nil {
			return err
		}
	}
	if v.leave == nil {
		return nil
	}
	return v.leave()
}

// namesPerRead is how many names of a directory are held in memory: a box may have created millions.
const namesPerRead = 1024

// namesIn yields the names in a directory. After an error it stops.
func namesIn(dir *os.File) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for {
			names, err := dir.Readdirnames(namesPerRead)
			for _, n := range names {
				if !yield(n, nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield("", err)
				return
			}
		}
	}
}

// visit visits one entry and everything below it.
func (v visitor) visit(ctx context.Context, dir *os.File, name string, dev uint64, depth int) error {
	if *v.seen++; *v.seen > v.maxEntries {
		return fmt.Errorf("the box has written more than %d files and directories, which a snapshot cannot hold", v.maxEntries)
	}
	e := entry{name: name}
	if err := unix.Fstatat(int(dir.Fd()), name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return v.ignoreVanished(err)
	}
	if e.stat.Dev != dev {
		return fmt.Errorf("something is mounted at %q", name)
	}
	if err := v.entry(dir, e); err != nil || !e.isDir() {
		return err
	}
	return v.visitDir(ctx, dir, name, dev, depth+1)
}

// ignoreVanished ignores that an entry has vanished or been replaced, if the tree may change.
func (v visitor) ignoreVanished(err error) error {
	for _, gone := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ESTALE} {
		if v.changing && errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// openAt opens an entry of a directory for reading. It follows no link, crosses no mount point and does not block on pipes.
func openAt(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOATIME | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
	}
}

// linkPath names an entry of an open directory for calls that take only paths and do not follow links.
func linkPath(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// readLink returns the target of a symbolic link.
func readLink(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// attr is one extended attribute as stored in a layer.
type attr struct {
	Name  string
	Value []byte
}

// Attributes that need more than copying.
const (
	capability = "security.capability"
	aclPrefix  = "system.posix_acl_"
	overlay    = "trusted.overlay."
)

// keptAttrs are the attributes of overlayfs that have a meaning in a lower layer. The others refer to the former lower
// directories, or are counters.
var keptAttrs = []string{overlay + "opaque", overlay + "whiteout"}

// redirectAttrs are attributes that make overlayfs look for the file elsewhere. Boxes are mounted so that it does not create them.
var redirectAttrs = []string{overlay + "redirect", overlay + "metacopy"}

// readAttrs returns the attributes of a path, with values as stored in a layer. It does not follow links, except a path
// directly in /proc/self/fd.
func readAttrs(path string, ids namespace.IDs) ([]attr, error) {
	names, err := attrNames(path)
	var attrs []attr
	for _, name := range names {
		switch keep, err := isKept(name); {
		case err != nil:
			return nil, err
		case !keep:
			continue
		}
		value, err := attrValue(path, name)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err == nil {
			value, err = storedValue(name, value, ids)
		}
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		attrs = append(attrs, attr{name, value})
	}
	return attrs, err
}

// isKept reports whether an attribute belongs in a layer.
func isKept(name string) (bool, error) {
	for _, u := range redirectAttrs {
		if name == u {
			return false, fmt.Errorf("overlayfs has left %s in the box: it was created by another version of the gateway; create it again", name)
		}
	}
	for _, k := range keptAttrs {
		if name == k {
			return true, nil
		}
	}
	return name == capability || strings.HasPrefix(name, "user.") || strings.HasPrefix(name, aclPrefix), nil
}

// follows reports whether the path is an open file in /proc/self/fd, rather than an entry of an open directory.
func follows(path string) bool {
	return strings.Count(path, "/") == strings.Count("/proc/self/fd/0", "/")
}

func attrNames(path string) ([]string, error) {
	list := unix.Llistxattr
	if follows(path) {
		list = unix.Listxattr
	}
	buf := make([]byte, 1024)
	for {
		n, err := list(path, buf)
		if errors.Is(err, unix.ERANGE) {
			buf = make([]byte, 64<<10) // the kernel's limit
			continue
		}
		if errors.Is(err, unix.EOPNOTSUPP) || n == 0 {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00"), nil
	}
}

func attrValue(path, name string) ([]byte, error) {
	get := unix.Lgetxattr
	if follows(path) {
		get = unix.Getxattr
	}
	buf := make([]byte, 256)
	for {
		n, err := get(path, name, buf)
		if errors.Is(err, unix.ERANGE) {
			buf = make([]byte, 64<<10)
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:n], nil
	}
}

// writeAttrs sets the attributes of a path.
func writeAttrs(path string, attrs []attr) error {
	set := unix.Lsetxattr
	if follows(path) {
		set = unix.Setxattr
	}
	for _, a := range attrs {
		if err := set(path, a.Name, a.Value, 0); err != nil {
			return fmt.Errorf("attribute %s: %w", a.Name, err)
		}
	}
	return nil
}

// storedValue converts user IDs in an attribute to IDs of the box.
func storedValue(name string, value []byte, ids namespace.IDs) ([]byte, error) {
	switch {
	case name == capability:
		return storedCapability(value, ids), nil
	case strings.HasPrefix(name, aclPrefix):
		return storedACL(value, ids)
	}
	return value, nil
}

// Layouts of linux/capability.h. Revision 3 ends with the user ID of root in the namespace that the capabilities apply to.
const (
	capRevisionMask = 0xff000000
	capRevision2    = 0x02000000
	capRevision3    = 0x03000000
	capSize2        = 20
	capSize3        = 24
)

// storedCapability converts file capabilities of the box's user namespace to the form without a namespace, as in an image,
// whose owners each box maps.
func storedCapability(value []byte, ids namespace.IDs) []byte {
	if len(value) != capSize3 || binary.LittleEndian.Uint32(value)&capRevisionMask != capRevision3 {
		return value
	}
	if binary.LittleEndian.Uint32(value[capSize2:]) != uint32(ids.Host(0)) {
		return value // of a namespace within the box
	}
	out := bytes.Clone(value[:capSize2])
	flags := binary.LittleEndian.Uint32(value) &^ capRevisionMask
	binary.LittleEndian.PutUint32(out, flags|capRevision2)
	return out
}

// storedACL maps the IDs of an access control list (linux/posix_acl_xattr.h): a version, and entries of a tag, permissions
// and an ID.
func storedACL(value []byte, ids namespace.IDs) ([]byte, error) {
	const head, size, user, group = 4, 8, 0x02, 0x08
	if len(value) < head || (len(value)-head)%size != 0 {
		return nil, errors.New("it cannot be read")
	}
	out := bytes.Clone(value)
	for at := head; at < len(out); at += size {
		if tag := binary.LittleEndian.Uint16(out[at:]); tag == user || tag == group {
			id := binary.LittleEndian.Uint32(out[at+4:])
			binary.LittleEndian.PutUint32(out[at+4:], unmapped(ids, id))
		}
	}
	return out, nil
}

// overflowID is the owner in a layer of files whose owner has no ID in the box.
const overflowID = 65534

// unmapped converts a user or group ID of the host to the ID in the box. Root of the host, which owns whiteouts, becomes
// overflowID as well.
func unmapped(ids namespace.IDs, host uint32) uint32 {
	if id, ok := ids.Inside(int(host)); ok {
		return uint32(id)
	}
	return overflowID
}
