package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
)

// The user and directories of commands.
const (
	User      = "boxuser"
	UID       = 1000
	workspace = "/workspace"
	Home      = "/workspace/home"
)

// Identity has the individual settings of a box's root.
type Identity struct {
	Hostname string
	DNS      []netip.Addr // its resolvers; may be empty
	Git      GitIdentity
	CA       []byte // PEM certificates trusted in addition to the public roots; may be empty
	Roots    []byte // PEM certificates trusted like public roots; may be empty
	Restored bool   // the root has the files of another box, whose CA must be removed
}

// PrepareNew writes the files of a box into a fresh root without running processes: its names, its user, its first process and
// its certificates.
func (b *Root) PrepareNew(is Identity) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"its first process", func() error { return b.installInit() }},
		{"its home directory", func() error { return b.makeHome(is.Restored) }},
		{"its user", b.addUser},
		{"its names", func() error { return b.writeNames(is) }},
		{"its git identity", func() error { return b.writeGit(is.Git) }},
		{"its certificates", func() error { return b.trust(is.CA, is.Roots) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("cannot write %s: %w", step.what, err)
		}
	}
	return nil
}

// mountPoints are the directories that the runtime mounts on. An image may lack them.
var mountPoints = []string{"/proc", "/sys", "/dev", "/tmp"}

func (b *Root) makeHome(restored bool) error {
	for _, d := range []string{workspace, Home} {
		if restored && b.isDir(d) {
			continue // keep its mode
		}
		if err := b.mkdir(d, 0o755, UID); err != nil {
			return err
		}
	}
	for _, d := range mountPoints {
		if !b.isDir(d) {
			if err := b.mkdir(d, 0o755, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// addUser puts boxuser first in the image's user database, so that user ID 1000 is shown as boxuser even if the image has
// another name for it.
func (b *Root) addUser() error {
	shell := "/bin/sh"
	if b.isFile("/bin/bash") {
		shell = "/bin/bash"
	}
	entry := fmt.Sprintf("%s:x:%d:%d:%s:%s:%s\n", User, UID, UID, User, Home, shell)
	root := "root:x:0:0:root:/root:/bin/sh\n"
	if err := b.prepend("/etc/passwd", entry, root, 0o644); err != nil {
		return err
	}
	if b.isFile("/etc/shadow") { // if it exists, su requires users to be in it; no password matches this one
		if err := b.prepend("/etc/shadow", User+":*:19000::::::\n", "", 0o600); err != nil {
			return err
		}
	}
	return b.prepend("/etc/group", fmt.Sprintf("%s:x:%d:\n", User, UID), "root:x:0:\n", 0o644)
}

// prepend puts an entry at the head of a user database, and removes an existing one of the same name. missing is the rest
// of the file if the image lacks it.
func (b *Root) prepend(name, entry, missing string, mode fs.FileMode) error {
	old, err := b.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		old, err = []byte(missing), nil
	}
	if err != nil {
		return err
	}
	var out bytes.Buffer
	out.WriteString(entry)
	for line := range bytes.Lines(old) {
		if !bytes.HasPrefix(line, []byte(User+":")) {
			out.Write(line)
		}
	}
	return b.write(name, out.Bytes(), mode)
}

// writeNames writes the box's host name and resolvers.
func (b *Root) writeNames(is Identity) error {
	host := is.Hostname
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + host + "\n"
	for _, f := range []struct{ name, content string }{
		{"/etc/hostname", host + "\n"},
		{"/etc/hosts", hosts},
		{"/etc/resolv.conf", resolvConf(is.DNS)},
	} {
		if err := b.replace(f.name, []byte(f.content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// resolvConf lists the resolvers. The C library reads three at most. Without any, it would query 127.0.0.1, where no server
// runs.
func resolvConf(servers []netip.Addr) string {
	var s strings.Builder
	for i, a := range servers {
		if i == 3 {
			break
		}
		fmt.Fprintf(&s, "nameserver %s\n", a.Unmap())
	}
	s.WriteString("options edns0\n")
	return s.String()
}
