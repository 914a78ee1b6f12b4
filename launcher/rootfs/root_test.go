package rootfs

import (
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
