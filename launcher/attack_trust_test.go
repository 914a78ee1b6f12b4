package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
)

// Where the launcher reads and writes, an image may have endless files, or files that block for ever. The box is refused
// soon, and no part of it remains.
func TestImageWithTrapsWhereTrustIsWritten(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	ca := launchertest.CA(t)
	pipe := func(p string) error { return unix.Mkfifo(p, 0o644) }
	endless := func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) }
	huge := func(p string) error {
		if err := os.WriteFile(p, nil, 0o644); err != nil {
			return err
		}
		return os.Truncate(p, 64<<30)
	}
	for what, place := range map[string]func(string) error{"pipe": pipe, "device": endless, "huge": huge} {
		for _, name := range []string{
			"etc/passwd", "etc/group", "etc/shadow", "etc/environment", "etc/profile", "etc/ssl/certs/ca-certificates.crt", "etc/ssl/cert.pem",
			"etc/profile.d/boxgate.sh",
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				t.Parallel()
				image := tree(t, map[string]string{"usr/bin/.keep": "", "etc/hostname": ""})
				at := filepath.Join(image, name)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := place(at); err != nil {
					t.Fatal(err)
				}
				overwritten := what == "huge" && name == "etc/profile.d/boxgate.sh" // it is not read
				unread := what != "huge" && (name == "etc/shadow")                  // nor is this
				err := createIn(t, image, ca, 2*time.Minute)
				if (err == nil) != (overwritten || unread) {
					t.Errorf("creating a box: %v", err)
				}
			})
		}
	}
}

// A trust store is written for each Java: an image with very many would fill the host's disk.
func TestImageWithVeryManyTrustStores(t *testing.T) {
	t.Parallel()
	files := map[string]string{"usr/bin/.keep": ""}
	for i := range nightly.Size(100, 1000) { // 64 are allowed
		files[fmt.Sprintf("opt/java%d/lib/security/cacerts", i)] = ""
	}
	if err := createIn(t, tree(t, files), launchertest.CA(t), 2*time.Minute); err == nil {
		t.Error("a box of an image with too many trust stores was created")
	}
}

// A box may fill the directories in which the launcher looks for trust stores, before it is snapshotted.
func TestImageWithVeryManyEntriesWhereTrustIsLookedFor(t *testing.T) {
	t.Parallel()
	image := tree(t, map[string]string{"usr/bin/.keep": "", "opt/java/jdk/lib/security/cacerts": "old", "etc/ssl/certs/.keep": ""})
	for _, dir := range []string{"opt", "etc/ssl/certs"} {
		for i := range nightly.Size(4_000, 20_000) {
			if err := os.Symlink("x", filepath.Join(image, dir, fmt.Sprintf("%08x.0", i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := createIn(t, image, launchertest.CA(t), 2*time.Minute); err != nil {
		t.Error(err)
	}
}

// There are other files beside installations of Java, and a box may put anything there.
func TestImageWithOtherEntriesWhereTrustIsLookedFor(t *testing.T) {
	t.Parallel()
	image := tree(t, map[string]string{"usr/bin/.keep": "", "usr/lib/jvm/jdk/lib/security/cacerts": "old", "usr/lib/jvm/.jdk.jinfo": "", "opt/java": ""})
	for _, link := range []string{"usr/lib/jvm/itself", "opt/itself"} {
		if err := os.Symlink("itself", filepath.Join(image, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := createIn(t, image, launchertest.CA(t), 2*time.Minute); err != nil {
		t.Error(err)
	}
}

// createIn creates a box with a root file system, and returns the error, which must come in time.
func createIn(t *testing.T, image string, ca []byte, within time.Duration) error {
	t.Helper()
	l := launcherIn(t, t.TempDir(), map[string]string{"default": image})
	spec := Spec{ID: newID(), CA: ca}
	made := make(chan error, 1)
	go func() {
		_, err := l.Prepare(t.Context(), spec)
		if err == nil {
			err = l.Create(t.Context(), spec)
		}
		made <- err
	}()
	select {
	case err := <-made:
		return err
	case <-time.After(within):
		t.Fatal("the launcher hangs")
		return nil
	}
}
