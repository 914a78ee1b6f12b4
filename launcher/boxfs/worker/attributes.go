package worker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Attributes are the extended attributes that users may define, see xattr(7). Their names begin with userPrefix, which the answers and
// requests leave out.
const (
	userPrefix = "user."
	// maxAttributes and maxAttributeBytes bound the attributes of a file in an answer. The length of names and values counts.
	maxAttributes     = 64
	maxAttributeBytes = 16 << 10
	// maxAttributeNames is the longest list of names that the kernel returns (XATTR_LIST_MAX).
	maxAttributeNames = 64 << 10
)

// attributes reads the attributes of a file or directory, at most as many as an answer holds. Names and values that are not UTF-8 are left
// out. A file without attributes has nil.
func attributes(path string, follow bool) map[string]string {
	list, get := unix.Llistxattr, unix.Lgetxattr
	if follow {
		list, get = unix.Listxattr, unix.Getxattr
	}
	size, err := list(path, nil)
	if err != nil || size == 0 {
		return nil
	}
	names := make([]byte, min(size, maxAttributeNames))
	if size, err = list(path, names); err != nil { // including a list that grew
		return nil
	}
	var found map[string]string
	left := maxAttributeBytes
	value := make([]byte, maxAttributeBytes)
	for name := range strings.SplitSeq(string(names[:size]), "\x00") {
		short, ok := strings.CutPrefix(name, userPrefix)
		if !ok || short == "" || len(found) == maxAttributes || !utf8.ValidString(short) {
			continue
		}
		n, err := get(path, name, value)
		if err != nil || len(short)+n > left || !utf8.Valid(value[:n]) {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[short] = string(value[:n])
		left -= len(short) + n
	}
	return found
}

// setAttributes removes and sets attributes of a file. It follows links. The first failure ends it.
func setAttributes(path string, set map[string]string, remove []string) error {
	if _, _, err := statPath(path, true); err != nil {
		return err
	}
	for _, name := range remove {
		if err := unix.Removexattr(path, userPrefix+name); err != nil && !errors.Is(err, unix.ENODATA) {
			return attributeError(name, err)
		}
	}
	names := make([]string, 0, len(set))
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := unix.Setxattr(path, userPrefix+name, []byte(set[name]), 0); err != nil {
			return attributeError(name, err)
		}
	}
	return nil
}

func attributeError(name string, err error) error {
	failed := *Failed(err)
	failed.Message = fmt.Sprintf("attribute %q: %s", name, failed.Message)
	if errors.Is(err, unix.EOPNOTSUPP) {
		failed.Message = "the file system has no attributes of users for such a file"
	}
	return &failed
}
