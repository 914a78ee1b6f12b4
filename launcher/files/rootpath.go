package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// maxLinks is how many symbolic links a path may have, as in the kernel.
const maxLinks = 40

// Resolve resolves the symbolic links of a path like a process whose root is that directory: an absolute link starts again
// at the root and ".." stops there. The result has no links, may not exist yet, and is relative to the root. os.Root alone
// refuses absolute links, which are common in images; with links resolved here it only gets plain paths, and still catches
// any mistake of this function.
func Resolve(root *os.Root, name string) (string, error) {
	todo := strings.Split(path.Clean("/"+name), "/")
	done := "."
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, part)
		target, err := linkTarget(root, next)
		if err != nil {
			return "", err
		}
		if target == "" {
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: too many levels of symbolic links", name)
		}
		if path.IsAbs(target) {
			done = "."
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return done, nil
}

// linkTarget returns the target of a symbolic link; "" for everything else, including missing files.
func linkTarget(root *os.Root, name string) (string, error) {
	fi, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if fi.Mode()&fs.ModeSymlink == 0 {
		return "", nil
	}
	return root.Readlink(name)
}

// ResolveParent resolves all of a path except its last element.
func ResolveParent(root *os.Root, name string) (string, error) {
	clean := strings.TrimPrefix(path.Clean("/"+name), "/")
	if clean == "" {
		return ".", nil
	}
	dir, err := Resolve(root, path.Dir(clean))
	if err != nil {
		return "", err
	}
	return path.Join(dir, path.Base(clean)), nil
}
