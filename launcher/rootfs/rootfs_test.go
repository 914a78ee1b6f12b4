package rootfs

import (
	"bytes"
	"crypto/x509/pkix"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
	"boxgate/launcher/namespace"
)

// A file is not mistaken for a directory with the same name.
func TestDirectoryInPlaceOfAFile(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at := t.TempDir()
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := os.WriteFile(filepath.Join(at, "workspace"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := root.mkdir("/workspace", 0o755, UID); err == nil {
		t.Error("a file is taken for a directory")
	}
	for range 2 {
		if err := root.mkdir("/home", 0o755, UID); err != nil {
			t.Error(err)
		}
	}
}

// TestBundleIsExchanged: a program that has opened the bundle reads the old one to its end. A pipe or a directory in its place is
// refused, and no other file is left beside it.
func TestBundleIsExchanged(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at := t.TempDir()
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.writeBundle([]byte("old")); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(filepath.Join(at, BundlePath))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := root.writeBundle([]byte("new and longer")); err != nil {
		t.Fatal(err)
	}
	old, err := io.ReadAll(reader)
	now, nowErr := os.ReadFile(filepath.Join(at, BundlePath))
	if err != nil || nowErr != nil || string(old) != "old" || string(now) != "new and longer" {
		t.Errorf("%q %v, %q %v", old, err, now, nowErr)
	}
	ca, _ := launchertest.Certificate(t, pkix.Name{CommonName: "box"}, nil, nil)
	if trusts, err := root.Trusts(ca); trusts || err != nil {
		t.Errorf("before: %v %v", trusts, err)
	}
	if err := root.writeBundle(append([]byte("others\n"), ca...)); err != nil {
		t.Fatal(err)
	}
	if trusts, err := root.Trusts(ca); !trusts || err != nil {
		t.Errorf("after: %v %v", trusts, err)
	}
	if left, err := os.ReadDir(filepath.Dir(filepath.Join(at, BundlePath))); err != nil || len(left) != 1 {
		t.Errorf("%v %v", left, err)
	}
	if err := errors.Join(os.Remove(filepath.Join(at, BundlePath)), unix.Mkfifo(filepath.Join(at, BundlePath), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := root.writeBundle([]byte("x")); err == nil {
		t.Error("a pipe is taken for a file")
	}
}

// TestAttackNamesOfCertificates: a box that has taken very many of OpenSSL's names for its CA gets an error, after a bounded number of
// attempts.
func TestAttackNamesOfCertificates(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at := t.TempDir()
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	dir := filepath.Join(at, path.Dir(BundlePath))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	take := func(from, to int) {
		for n := from; n < to; n++ {
			if err := os.Link(file, filepath.Join(dir, fmt.Sprintf("0123abcd.%d", n))); err != nil {
				t.Fatal(err)
			}
		}
	}
	take(0, 3)
	if name, err := root.freeHashName(path.Dir(BundlePath), "0123abcd"); path.Base(name) != "0123abcd.3" || err != nil {
		t.Errorf("%q %v", name, err)
	}
	take(3, maxHashNames)
	if name, err := root.freeHashName(path.Dir(BundlePath), "0123abcd"); err == nil {
		t.Errorf("%q after %d names", name, maxHashNames)
	}
}

// TestRootOfARunningBox: files that are not the box's are neither read nor written, as a link that the box changes meanwhile may lead to
// one. Nothing of this process's own roots is added to a box without a bundle.
func TestRootOfARunningBox(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	for name, content := range map[string]string{"own": "own", "foreign": "foreign"} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := Open(at, namespace.IDsFrom(os.Getuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	refused := errors.New("refused")
	root.accept = func(f *os.File) error {
		if filepath.Base(f.Name()) == "foreign" {
			return refused
		}
		return nil
	}
	if data, err := root.read("own"); err != nil || string(data) != "own" {
		t.Errorf("%q %v", data, err)
	}
	if data, err := root.read("foreign"); !errors.Is(err, refused) {
		t.Errorf("%q %v", data, err)
	}
	if err := root.writeAt("foreign", []byte("x"), 0o600); !errors.Is(err, refused) {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(at, "foreign")); err != nil || string(data) != "foreign" {
		t.Errorf("%q %v", data, err)
	}
	if bundle, err := root.bundle(nil); !errors.Is(err, ErrCARemoved) {
		t.Errorf("%d bytes, %v", len(bundle), err)
	}
}

// Only the CA of a box is removed from a bundle, whatever the bundle's line endings.
func TestWithoutBoxes(t *testing.T) {
	t.Parallel()
	make := func(name, organization string) string {
		ca, _ := launchertest.Certificate(t, pkix.Name{CommonName: name, Organization: []string{organization}}, nil, nil)
		return string(ca)
	}
	box, other := make(boxCAName+"old", "boxgate"), make("Root", "Somebody")
	bare := strings.TrimSpace
	windows := func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }
	for bundle, want := range map[string]string{
		other + box + other:                      other + other,
		box + box:                                "",
		other + bare(box):                        other,
		bare(box) + other:                        other,
		bare(box) + " \t\n" + other:              " \t\n" + other,
		windows(box) + windows(other):            windows(other),
		"# old\n" + bare(box) + "\n\n# next\n":   "# old\n\n# next\n",
		other + "-----BEGIN CERTIFICATE-----\nx": other + "-----BEGIN CERTIFICATE-----\nx",
	} {
		if got := string(withoutBoxes([]byte(bundle))); got != want {
			t.Errorf("of %q %q is left", bundle, got)
		}
	}
}

// A process in a root replaces a file by a pipe while it is opened: opening does not block.
func TestAttackFileExchangedForAPipe(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	file, pipe := filepath.Join(at, "file"), filepath.Join(at, "pipe")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, pipe, unix.RENAME_EXCHANGE)
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			_, _ = root.readAt("file")
			_ = root.writeAt("file", []byte("x"), 0o644)
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("it waits for the other end of a pipe")
		if f, err := os.OpenFile(pipe, os.O_RDWR|unix.O_NONBLOCK, 0); err == nil {
			defer f.Close()
		}
	}
}

// A pipe or a device in place of a file is replaced, and never opened.
func TestReplacePipeAndDevice(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(at, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(at, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))); err != nil {
		t.Fatal(err)
	}
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"pipe", "device"} {
		if _, err := root.readAt(name); err == nil {
			t.Errorf("the %s was read", name)
		}
		if err := root.writeAt(name, []byte("x"), 0o644); err == nil {
			t.Errorf("the %s was written", name)
		}
		if err := root.Replace("/"+name, []byte("x"), 0o644); err != nil {
			t.Error(err)
		}
		if data, err := os.ReadFile(filepath.Join(at, name)); err != nil || string(data) != "x" {
			t.Errorf("in place of the %s: %q %v", name, data, err)
		}
	}
}

func TestInitProgramIsAnExecutable(t *testing.T) {
	t.Parallel()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		data, err := initProgram(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil || f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 1 || f.Progs[0].Filesz != uint64(len(data)) {
			t.Errorf("%s: %+v, %v", arch, f, err)
		}
	}
	if _, err := initProgram("mips"); err == nil {
		t.Error("an architecture without a program was accepted")
	}
}

// TestInitProgramRuns: the program ignores SIGCHLD, so that the kernel reaps its children, and does not end. With QEMU set
// to an emulator of the architecture (make arm64), it runs there.
func TestInitProgramRuns(t *testing.T) {
	t.Parallel()
	data, err := initProgram(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	command := []string{path}
	if emulator := os.Getenv("QEMU"); emulator != "" {
		command = []string{emulator, path}
	}
	cmd := exec.Command(command[0], command[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	ignoring := regexp.MustCompile(`(?m)^SigIgn:\s*[0-9a-f]*[13579bdf][0-9a-f]{4}$`) // bit 16 is SIGCHLD
	for deadline := time.Now().Add(time.Minute); ; {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err == nil && ignoring.Match(status) {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not ignore SIGCHLD:\n%s", status)
		}
	}
	_ = cmd.Process.Signal(syscall.SIGCHLD)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := <-ended; cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended by itself: %v", err)
	}
}

// FuzzGitIdentity: git reads back the written values, an identity replaces an earlier one, and the rest stays.
func FuzzGitIdentity(f *testing.F) {
	f.Add("Ann", "ann@example.com")
	f.Add(`a "b" \c # d ; [e]`, "\t=x\n[user]\nname = other")
	f.Fuzz(func(t *testing.T, name, email string) {
		if strings.ContainsAny(name+email, "\x00\r\b") || !strings.ContainsFunc(name, func(r rune) bool { return r > ' ' }) {
			return
		}
		config := "[core]\n\tpager = less"
		for _, is := range []GitIdentity{{"Old", "old@example.com"}, {name, email}} {
			config = is.insertInto(config)
		}
		file := filepath.Join(t.TempDir(), "gitconfig")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{"user.name": name, "user.email": email, "core.pager": "less"} {
			out, err := exec.Command("git", "config", "--file", file, "--get-all", "--null", key).Output()
			if err != nil || string(out) != want+"\x00" {
				t.Fatalf("%s is %q, %v; want %q", key, out, err, want)
			}
		}
		if got := (GitIdentity{}).insertInto(config); got != "[core]\n\tpager = less\n" {
			t.Fatalf("without an identity: %q", got)
		}
	})
}

// A box accepts its gateway as any host, in addition to the hosts that the image knows. The key of the box that the files
// came from is removed.
func TestKnownHosts(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	at := t.TempDir()
	root, err := Open(at, namespace.IDsAt(7))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const of = "git.example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
	file := filepath.Join(at, knownHostsPath)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(of), 0o600); err != nil { // without a line break
		t.Fatal(err)
	}
	var lines []byte
	for _, box := range []string{"old", "new"} {
		ca, _ := launchertest.Certificate(t, pkix.Name{CommonName: boxCAName + box, Organization: []string{"boxgate"}}, nil, nil)
		certs, err := parseCA(ca)
		if err != nil {
			t.Fatal(err)
		}
		if err := root.writeKnownHosts(certs); err != nil {
			t.Fatal(err)
		}
		if lines, err = KnownHosts(ca); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if want := of + "\n" + string(lines); err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if out, err := exec.Command("ssh-keygen", "-f", file, "-F", "[any.example.org]:2222").CombinedOutput(); err != nil || !strings.Contains(string(out), boxCAName+"new") {
		t.Errorf("ssh-keygen: %v: %s", err, out)
	}
}

// The vendor's name of the home directory is a link, unless an image has something else there.
func TestOtherHome(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for name, tt := range map[string]struct {
		make func(at string) error
		want string // of the link; "": there is none
	}{
		"empty": {func(string) error { return nil }, Home},
		"home":  {func(at string) error { return os.Mkdir(filepath.Join(at, "home"), 0o755) }, Home},
		"link": {func(at string) error {
			return errors.Join(os.MkdirAll(filepath.Join(at, "var/home"), 0o755), os.Symlink("/var/home", filepath.Join(at, "home")))
		}, Home},
		"outside": {func(at string) error { return os.Symlink("../../../..", filepath.Join(at, "home")) }, Home},
		"file":    {func(at string) error { return os.WriteFile(filepath.Join(at, "home"), nil, 0o600) }, ""},
		"loop":    {func(at string) error { return os.Symlink("home", filepath.Join(at, "home")) }, ""},
		"a home":  {func(at string) error { return os.MkdirAll(filepath.Join(at, "home/boxuser/own"), 0o755) }, ""},
		"another link": {func(at string) error {
			return errors.Join(os.Mkdir(filepath.Join(at, "home"), 0o755), os.Symlink("/etc", filepath.Join(at, "home/boxuser")))
		}, "/etc"},
		"a dangling link": {func(at string) error {
			return errors.Join(os.Mkdir(filepath.Join(at, "home"), 0o755), os.Symlink("/x", filepath.Join(at, "home/boxuser")))
		}, "/x"},
	} {
		at := t.TempDir()
		if err := tt.make(at); err != nil {
			t.Fatal(err)
		}
		root, err := Open(at, namespace.IDsAt(7))
		if err != nil {
			t.Fatal(err)
		}
		if err := root.linkHomes(Account{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = root.Close()
		link := filepath.Join(at, "home/boxuser")
		switch name {
		case "link":
			link = filepath.Join(at, "var/home/boxuser")
		case "outside":
			link = filepath.Join(at, "boxuser")
		}
		if got, err := os.Readlink(link); got != tt.want {
			t.Errorf("%s: %q %v, want %q", name, got, err, tt.want)
		}
	}
}
