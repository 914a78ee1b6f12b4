package rootfs

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"boxgate/internal/lazyregexp"
	"boxgate/launcher/files"
)

// The box's ordinary user, where a box has no other [Account].
const (
	User = "boxuser"
	UID  = 1000 // of the ordinary user of every box
	Home = "/workspace/home"
)

const (
	workspace = "/workspace"
	// otherHome is the home directory of this user in the boxes of the SDK's vendor.
	otherHome = "/home/boxuser"
	// firstOrdinary is the lowest ID of users that are no accounts of the system, see login.defs(5), UID_MIN.
	firstOrdinary = 1000
)

// Account is the box's ordinary user, whose ID is [UID]. The zero value is [User] in [Home].
type Account struct {
	Name string // as in passwd(5); empty: [User]
	Home string // one directory below /home or /workspace; empty: [Home]
}

var (
	// validName matches names that every user database and sudoers(5) take literally.
	validName = lazyregexp.New(`^[a-z_][a-z0-9_-]{0,31}$`)
	validHome = lazyregexp.New(`^/(home|workspace)/[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$`)
)

// Check returns an error for a name or directory that a box cannot have.
func (a Account) Check() error {
	a = a.filled()
	if a.Name == "root" || !validName.MatchString(a.Name) {
		return fmt.Errorf("user %q cannot be used: lower-case letters, digits, '-' and '_' only, 32 at most, and not root", a.Name)
	}
	if !validHome.MatchString(a.Home) {
		return fmt.Errorf("home directory %q cannot be used: it must be one directory below /home or /workspace", a.Home)
	}
	return nil
}

// filled returns the account with the defaults in place of empty fields.
func (a Account) filled() Account {
	return Account{cmp.Or(a.Name, User), cmp.Or(a.Home, Home)}
}

// HomeDir returns the home directory.
func (a Account) HomeDir() string { return a.filled().Home }

// UserName returns the name of the user.
func (a Account) UserName() string { return a.filled().Name }

// Has reports whether a name that a caller gives is the account's. Every box also knows its ordinary user as [User].
func (a Account) Has(name string) bool { return name == User || name == a.UserName() }

// directories lists the directories on the way to the home directory. /workspace is the user's own, and /home is root's.
func (a Account) directories() []ownedDir {
	home := a.HomeDir()
	above := ownedDir{path.Dir(home), 0}
	if above.name == workspace {
		above.owner = UID
	}
	return []ownedDir{above, {home, UID}}
}

type ownedDir struct {
	name  string
	owner int // ID of the box
}

// makeHome makes the user's directories and the mount points. In a restored root, existing ones keep their mode, and a link to
// a missing directory is moved aside: the box's user of the snapshot can make one anywhere, and would own what is made there.
func (b *Root) makeHome(account Account, restored bool) error {
	if restored {
		if err := b.remakeHome(account); err != nil {
			return err
		}
	} else if err := b.makeNewHome(account); err != nil {
		return err
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

// makeNewHome makes the user's directories in the root of an image. The user gets an existing one, except a link at a place that the
// creator of the box has chosen: it may lead to a directory of the system.
func (b *Root) makeNewHome(account Account) error {
	if account.HomeDir() != Home {
		if p, err := files.ResolveParent(b.root, account.HomeDir()); err == nil {
			if fi, err := b.root.Lstat(p); err == nil && !fi.IsDir() {
				return fmt.Errorf("%s is there already, and no directory", account.HomeDir())
			}
		}
	}
	for _, d := range append([]ownedDir{{workspace, UID}}, account.directories()...) {
		if d.owner == 0 && b.isDir(d.name) {
			continue // keeps its mode
		}
		if err := b.mkdir(d.name, 0o755, d.owner); err != nil {
			return err
		}
	}
	return nil
}

// remakeHome makes the user's directories that are missing, and moves aside whatever else is there.
func (b *Root) remakeHome(account Account) error {
	for _, d := range account.directories() {
		if b.isDir(d.name) {
			continue
		}
		if err := b.remake(d.name, d.owner); err != nil {
			return err
		}
	}
	return nil
}

// linkHomes makes links from the other names of the home directory, so that paths of another box's user work as well. An image, or
// another box whose files these are, may have something else there, or a /home that is no directory: that stays as it is.
func (b *Root) linkHomes(account Account) error {
	for _, name := range []string{otherHome, Home} {
		if name == account.HomeDir() {
			continue
		}
		p, err := files.ResolveParent(b.root, name)
		if err != nil {
			continue // a box without the link works
		}
		if _, err := b.root.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if b.parents(p) != nil {
			continue
		}
		if err := b.symlink(account.HomeDir(), name); err != nil {
			return err
		}
	}
	return nil
}

// addUser puts the user first in the image's user database, so that user ID 1000 has this name even if the image has
// another name for it.
func (b *Root) addUser(account Account) error {
	a, shell := account.filled(), "/bin/sh"
	if b.isFile("/bin/bash") {
		shell = "/bin/bash"
	}
	entry := fmt.Sprintf("%s:x:%d:%d:%s:%s:%s\n", a.Name, UID, UID, a.Name, a.Home, shell)
	root := "root:x:0:0:root:/root:/bin/sh\n"
	if err := b.prepend("/etc/passwd", entry, root, 0o644); err != nil {
		return err
	}
	if b.isFile("/etc/shadow") { // if it exists, su requires users to be in it; no password matches this one
		if err := b.prepend("/etc/shadow", a.Name+":*:19000::::::\n", "", 0o600); err != nil {
			return err
		}
	}
	return b.prepend("/etc/group", fmt.Sprintf("%s:x:%d:\n", a.Name, UID), "root:x:0:\n", 0o644)
}

// prepend puts an entry at the head of a user database, and removes an existing one of the same name. missing is the rest
// of the file if the image lacks it. A name of the system is an error: its files and rules would become the box's user's.
func (b *Root) prepend(name, entry, missing string, mode fs.FileMode) error {
	old, err := b.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		old, err = []byte(missing), nil
	}
	if err != nil {
		return err
	}
	user, _, _ := strings.Cut(entry, ":")
	var out bytes.Buffer
	out.WriteString(entry)
	for line := range bytes.Lines(old) {
		if !bytes.HasPrefix(line, []byte(user+":")) {
			out.Write(line)
			continue
		}
		if fields := strings.Split(string(line), ":"); user != User && name != "/etc/shadow" && len(fields) > 2 {
			if id, err := strconv.Atoi(strings.TrimSpace(fields[2])); err == nil && id < firstOrdinary {
				return fmt.Errorf("the image has a user or group %q of the system in %s; choose another name", user, name)
			}
		}
	}
	return b.write(name, out.Bytes(), mode)
}

// databases returns the user databases for a box that has replaced its own by something other than a file.
func (a Account) databases() map[string]string {
	a = a.filled()
	return map[string]string{
		"/etc/passwd": fmt.Sprintf("%s:x:%d:%d:%s:%s:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n", a.Name, UID, UID, a.Name, a.Home),
		"/etc/group":  fmt.Sprintf("%s:x:%d:\nroot:x:0:\n", a.Name, UID),
	}
}

// reopenUsers makes sure that the user databases that the runtime reads are files: it would wait for ever for a writer to a
// pipe. A box without them can be started as well.
func (b *Root) reopenUsers(account Account) error {
	for name, entries := range account.databases() {
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
