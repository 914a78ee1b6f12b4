package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"boxgate/launcher/namespace"
)

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
