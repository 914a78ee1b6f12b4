package rootfs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"

	"boxgate/launcher/files"
)

// PrepareRestart writes the files that a box needs to start again. The box may change all others. If the box has put something
// else (a pipe, a dangling link) where the runtime needs a file or a directory, that is moved aside. No process runs in the
// root.
func (b *Root) PrepareRestart() error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"its first process", b.reinstallInit},
		{"its mount points", b.remakeMountPoints},
		{"its home directory", b.remakeHome},
		{"its user", b.reopenUsers},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("cannot write %s: %w", step.what, err)
		}
	}
	return nil
}

func (b *Root) reinstallInit() error {
	if b.isDir(InitPath) {
		if err := b.moveAside(InitPath); err != nil {
			return err
		}
	}
	return b.installInit()
}

// remakeMountPoints makes the directories that the runtime mounts on, and replaces links.
func (b *Root) remakeMountPoints() error {
	for _, name := range mountPoints {
		if fi, err := b.root.Lstat(name[1:]); err == nil && fi.IsDir() {
			continue
		}
		if err := b.remake(name, 0); err != nil {
			return err
		}
	}
	return nil
}

func (b *Root) remakeHome() error {
	for _, name := range []string{workspace, Home} {
		if b.isDir(name) {
			continue
		}
		if err := b.remake(name, UID); err != nil {
			return err
		}
	}
	return nil
}

// remake makes a directory, and moves an existing file of that name aside.
func (b *Root) remake(name string, owner int) error {
	if err := b.moveAside(name); err != nil {
		return err
	}
	return b.mkdir(name, 0o755, owner)
}

// userDatabases are the databases for a box that has replaced its own by something other than a file.
var userDatabases = map[string]string{
	"/etc/passwd": fmt.Sprintf("%s:x:%d:%d:%s:%s:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n", User, UID, UID, User, Home),
	"/etc/group":  fmt.Sprintf("%s:x:%d:\nroot:x:0:\n", User, UID),
}

// reopenUsers makes sure that the user databases that the runtime reads are files: it would wait for ever for a writer to a
// pipe. A box without them can be started as well.
func (b *Root) reopenUsers() error {
	for name, entries := range userDatabases {
		if b.isFile(name) {
			continue
		}
		p, err := files.ResolveParent(b.root, name)
		if err != nil {
			continue // then the runtime does not find it either
		}
		if _, err := b.root.Lstat(p); err != nil {
			continue
		}
		if err := b.moveAside(name); err != nil {
			return err
		}
		if err := b.writeAt(p, []byte(entries), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// moveAside renames a file to another name in its directory. A missing one is not an error.
func (b *Root) moveAside(name string) error {
	p, err := files.ResolveParent(b.root, name)
	if err != nil {
		return err
	}
	if _, err := b.root.Lstat(p); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return b.root.Rename(p, p+".aside-"+rand.Text())
}
