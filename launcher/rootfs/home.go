package rootfs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// HomeFile is a file of the box's user, only readable by that user.
type HomeFile struct {
	Path string // relative to the home directory, in plain form
	Data []byte
}

// writeHome writes files into the home directory. The root may be the work of another box of the same user, from a snapshot:
// below the file system's root no link is followed, since a link to a file of the box's root would give it to the box's user.
// Whatever is in the way of a directory or a file is moved aside.
func (b *Root) writeHome(account Account, files []HomeFile) error {
	for _, f := range files {
		if !fs.ValidPath(f.Path) || f.Path == "." {
			return fmt.Errorf("%q is not a path below the home directory", f.Path)
		}
		if err := b.writeHomeFile(account, path.Join(strings.TrimPrefix(account.HomeDir(), "/"), f.Path), f.Data); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return nil
}

func (b *Root) writeHomeFile(account Account, p string, data []byte) error {
	dir, above := "", account.directories()[0]
	for part := range strings.SplitSeq(path.Dir(p), "/") {
		dir = path.Join(dir, part)
		if fi, err := b.root.Lstat(dir); err == nil && fi.IsDir() {
			continue
		}
		if err := b.setAside(dir); err != nil {
			return err
		}
		if err := b.root.Mkdir(dir, 0o755); err != nil {
			return err
		}
		owner := UID
		if "/"+dir == above.name {
			owner = above.owner
		}
		if err := b.setOwner(dir, 0o755, owner); err != nil {
			return err
		}
	}
	if err := b.setAside(p); err != nil {
		return err
	}
	f, err := b.openFile(p, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chown(b.ids.Host(UID), b.ids.Host(UID)), f.Chmod(0o600), f.Close())
}

// setAside renames what is at a path without links. A missing file is not an error.
func (b *Root) setAside(p string) error {
	if _, err := b.root.Lstat(p); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return b.root.Rename(p, p+".aside-"+rand.Text())
}
