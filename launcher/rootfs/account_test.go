package rootfs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/launcher/namespace"
)

// TestAccountCheck: names that a user database or sudoers would read differently, and directories elsewhere, are refused.
func TestAccountCheck(t *testing.T) {
	t.Parallel()
	for _, good := range []Account{{}, {Name: "user"}, {Home: "/home/user"}, {"_a-1", "/workspace/x.y"}, {User, Home}, {strings.Repeat("a", 32), "/home/" + strings.Repeat("b", 63)}} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for _, name := range []string{"root", "Root", "ALL", "1000", "a b", "a:0:0", "a\nroot:x:0:0", "%sudo", "#0", "-a", "a/b", "ü", strings.Repeat("a", 33)} {
		if (Account{Name: name}).Check() == nil {
			t.Errorf("name %q is accepted", name)
		}
	}
	for _, home := range []string{"/", "/home", "/home/", "/root", "/etc", "/home/..", "/home/.", "/home/../etc", "/home/a/b", "/workspace", "home/user", "/home/a b", "/home/a:b", "/home/-a", "/home/a\n", "/home/" + strings.Repeat("b", 64)} {
		if (Account{Home: home}).Check() == nil {
			t.Errorf("home %q is accepted", home)
		}
	}
}

// FuzzAccount: an account that is accepted makes one line of a user database, with a directory below one that the gateway makes.
func FuzzAccount(f *testing.F) {
	f.Add("user", "/home/user")
	f.Add("a:b", "/home/../etc")
	f.Fuzz(func(t *testing.T, name, home string) {
		a := Account{name, home}
		if a.Check() != nil {
			return
		}
		line, _, _ := strings.Cut(a.databases()["/etc/passwd"], "\n")
		fields := strings.Split(line, ":")
		if len(fields) != 7 || fields[0] != a.UserName() || fields[2] != "1000" || fields[5] != a.HomeDir() || fields[0] == "root" {
			t.Errorf("%q", line)
		}
		if dir := filepath.Clean(fields[5]); dir != fields[5] || filepath.Dir(dir) != "/home" && filepath.Dir(dir) != "/workspace" {
			t.Errorf("%q", dir)
		}
	})
}

// TestOtherAccount: the user has the name and the home directory, /home stays root's, and the other homes are links to it.
func TestOtherAccount(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at, root := emptyRoot(t)
	shell(t, at, "mkdir etc; printf 'root:x:0:0::/:/bin/sh\\nuser:x:1001:1001::/x:/bin/sh\\n' >etc/passwd; echo 'root:*:1::::::' >etc/shadow")
	account := Account{"user", "/home/user"}
	if err := root.PrepareNew(Identity{Hostname: "x", Account: account, Files: []HomeFile{{".a", []byte("mine")}}}); err != nil {
		t.Fatal(err)
	}
	for name, owner := range map[string]int{"home": 0, "home/user": UID, "home/user/.a": UID, "workspace": UID} {
		fi, err := os.Lstat(filepath.Join(at, name))
		if err != nil || fi.Sys().(*syscall.Stat_t).Uid != uint32(namespace.IDsAt(7).Host(owner)) {
			t.Errorf("%s: %v %v", name, fi, err)
		}
	}
	for _, link := range []string{"home/boxuser", "workspace/home"} {
		if to, err := os.Readlink(filepath.Join(at, link)); err != nil || to != "/home/user" {
			t.Errorf("%s: %q %v", link, to, err)
		}
	}
	for name, want := range map[string]string{
		"passwd": "user:x:1000:1000:user:/home/user:/bin/sh\nroot:x:0:0::/:/bin/sh\n",
		"shadow": "user:*:19000::::::\nroot:*:1::::::\n", "group": "user:x:1000:\nroot:x:0:\n",
	} {
		if got, err := os.ReadFile(filepath.Join(at, "etc", name)); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	shell(t, at, "rm -r home/user etc/passwd; mkfifo etc/passwd; echo x >home/user")
	if err := root.PrepareRestart(account); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(at, "etc/passwd")); err != nil || !strings.HasPrefix(string(got), "user:x:1000:1000:user:/home/user:") || !root.isDir("/home/user") {
		t.Errorf("after a restart: %q %v", got, err)
	}
}

// TestAttackAccountOfTheSystem: neither a user nor a group of the image's system becomes the box's user, and no directory that a link
// in the image leads to.
func TestAttackAccountOfTheSystem(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for name, tt := range map[string]struct {
		prepare string
		account Account
	}{
		"a user":         {"mkdir etc; echo 'daemon:x:1:1::/:' >etc/passwd", Account{Name: "daemon"}},
		"a group":        {"mkdir etc; printf 'root:x:0:\\nsudo:x:27:\\n' >etc/group", Account{Name: "sudo"}},
		"another root":   {"mkdir etc; printf 'user:x:1000:1000::/:\\nuser:x:0:0::/:\\n' >etc/passwd", Account{Name: "user"}},
		"a link":         {"mkdir etc home; ln -s /etc home/user", Account{Home: "/home/user"}},
		"a link to none": {"mkdir home; ln -s /etc/new home/user", Account{Home: "/home/user"}},
		"a file":         {"mkdir home; echo >home/user", Account{Home: "/home/user"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, root := emptyRoot(t)
			shell(t, at, tt.prepare)
			if err := root.PrepareNew(Identity{Hostname: "x", Account: tt.account}); err == nil {
				t.Error("it is accepted")
			}
			if fi, err := os.Stat(filepath.Join(at, "etc")); err == nil && fi.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("/etc belongs to %d", fi.Sys().(*syscall.Stat_t).Uid)
			}
		})
	}
}

// emptyRoot opens an empty directory as the root of a box.
func emptyRoot(t *testing.T) (string, *Root) {
	t.Helper()
	at := t.TempDir()
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return at, root
}
