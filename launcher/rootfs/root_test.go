package rootfs

import (
	"crypto/x509/pkix"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
