package launcher

import (
	"bytes"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
)

// Stores of other distributions and of Java get the CA; links between them are followed inside the image only.
func TestOtherStoresGetTheCA(t *testing.T) {
	t.Parallel()
	image, outside := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "bundle")
	public := launchertest.CA(t)
	put := func(name string, content []byte) {
		t.Helper()
		p := filepath.Join(image, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	symlink := func(target, name string) {
		t.Helper()
		put(name+".dir/x", nil)
		if err := os.Symlink(target, filepath.Join(image, name)); err != nil {
			t.Fatal(err)
		}
	}
	put("usr/bin/.keep", nil)
	put("etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", public)
	put("etc/pki/ca-trust/source/anchors/.keep", nil)
	symlink("/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/pki/tls/certs/ca-bundle.crt")
	symlink("../../../../../../../.."+victim, "etc/ssl/cert.pem")
	put("opt/java/openjdk/lib/security/cacerts", []byte("old"))
	if err := os.WriteFile(victim, []byte("untouched"), 0o644); err != nil {
		t.Fatal(err)
	}

	l := launcherIn(t, t.TempDir(), map[string]string{"default": image})
	ca := launchertest.CA(t)
	id := newBox(t, l, func(s *Spec) { s.CA = ca })
	block, _ := pem.Decode(ca)
	for _, name := range []string{"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "etc/pki/ca-trust/source/anchors/boxgate.pem", "etc/ssl/certs/ca-certificates.crt"} {
		got, err := os.ReadFile(filepath.Join(l.dirs.upper(id), name))
		if err != nil || !bytes.Contains(got, bytes.TrimSpace(ca)) {
			t.Errorf("%s lacks the CA: %v", name, err)
		}
		if strings.HasSuffix(name, "bundle.pem") && !bytes.HasPrefix(got, bytes.TrimSpace(public)) {
			t.Errorf("%s lost its public roots", name)
		}
	}
	java, err := os.ReadFile(filepath.Join(l.dirs.upper(id), "opt/java/openjdk/lib/security/cacerts"))
	if err != nil || !bytes.HasPrefix(java, []byte("\xfe\xed\xfe\xed\x00\x00\x00\x02\x00\x00\x00\x02")) || !bytes.Contains(java, block.Bytes) {
		t.Errorf("Java's store lacks the CA or the public root: %v", err)
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "untouched" {
		t.Errorf("a link in the image led out of it: %q, %v", got, err)
	}
}

func TestMissingToolsNameTheRemedy(t *testing.T) {
	nightly.Root(t)
	dir := t.TempDir()
	l := launcherIn(t, dir, nil)
	l.images.Dir = filepath.Join(dir, "images")
	t.Setenv("PATH", filepath.Join(dir, "empty"))
	if err := l.EnsureImage(t.Context(), "debian", nil); err == nil || !strings.Contains(err.Error(), "apt-get install mmdebstrap") {
		t.Errorf("without mmdebstrap: %v", err)
	}
	if _, err := New(Config{StateDir: dir}); err == nil || !strings.Contains(err.Error(), "apt-get install runc") {
		t.Errorf("without runc: %v", err)
	}
	if _, err := New(Config{StateDir: "relative"}); err == nil {
		t.Error("a relative state directory was accepted")
	}
}
