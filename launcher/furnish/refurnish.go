package furnish

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"

	"boxgate/launcher/files"
)

// Refurnish writes into the root of a box that has run before what it needs to start again. The rest is the box's to change. What
// the box has put where the runtime needs a file or a directory is moved aside: a pipe, a link that leads nowhere. Nothing runs in
// the root.
func (b *Root) Refurnish() error {
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
		if err := b.putAside(InitPath); err != nil {
			return err
		}
	}
	return b.installInit()
}

// remakeMountPoints makes the directories that the runtime mounts on. It refuses those that are links.
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

// remake makes a directory in place of what has its name.
func (b *Root) remake(name string, owner int) error {
	if err := b.putAside(name); err != nil {
		return err
	}
	return b.mkdir(name, 0o755, owner)
}

// userDatabases are those of a box that has put something else in their place.
var userDatabases = map[string]string{
	"/etc/passwd": fmt.Sprintf("%s:x:%d:%d:%s:%s:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n", User, UID, UID, User, Home),
	"/etc/group":  fmt.Sprintf("%s:x:%d:\nroot:x:0:\n", User, UID),
}

// reopenUsers makes sure that nothing but a file is where the runtime looks for the users and groups of a box: it would wait for
// ever for a writer to a pipe. A box without them is started as well.
func (b *Root) reopenUsers() error {
	for name, entries := range userDatabases {
		if b.isFile(name) {
			continue
		}
		p, err := files.ResolveParent(b.root, name)
		if err != nil {
			continue // then the runtime finds nothing either
		}
		if _, err := b.root.Lstat(p); err != nil {
			continue
		}
		if err := b.putAside(name); err != nil {
			return err
		}
		if err := b.writeAt(p, []byte(entries), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// putAside gives what has a name another one beside it, if there is anything.
func (b *Root) putAside(name string) error {
	p, err := files.ResolveParent(b.root, name)
	if err != nil {
		return err
	}
	if _, err := b.root.Lstat(p); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return b.root.Rename(p, p+".aside-"+rand.Text())
}
