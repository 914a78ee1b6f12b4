package launcher

import (
	"bytes"
	"context"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"boxgate/internal/nightly"
	"boxgate/launcher/launchertest"
	"boxgate/launcher/snapshot"
)

// Short names for the helpers that the tests use all the time.
var (
	archive = launchertest.Archive
	file    = launchertest.File
	dir     = launchertest.Dir
	link    = launchertest.Link
)

// tinyImage has two layers, a whiteout and no program at all: everything that a box needs must come from the launcher.
func tinyImage(t *testing.T) v1.Image {
	t.Helper()
	img := empty.Image
	for _, data := range [][]byte{
		archive(t, dir("usr"), file("usr/kept", "k"), file("usr/dropped", "d"), link("etc", "/usr/etc"), dir("usr/etc"), link("usr/etc/resolv.conf", "../../../../run/nowhere")),
		archive(t, file("usr/.wh.dropped", "")),
	} {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Env = []string{"FLAVOUR=tiny", "PATH=/usr/only"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func TestImagesFromEverySource(t *testing.T) {
	t.Parallel()
	img := tinyImage(t)
	temp := t.TempDir()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	reference := strings.TrimPrefix(server.URL, "http://") + "/tiny:v1"
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	layoutDir, saved, plain, unpacked := filepath.Join(temp, "layout"), filepath.Join(temp, "saved.tar"), filepath.Join(temp, "plain.tar"), filepath.Join(temp, "tree")
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	_, lerr := layout.Write(layoutDir, index)
	if err := errors.Join(
		remote.Write(ref, img), lerr,
		tarball.WriteToFile(saved, ref, img),
		os.WriteFile(plain, archive(t, dir("usr"), file("usr/kept", "k"), dir("etc")), 0o600),
		os.MkdirAll(filepath.Join(unpacked, "usr/etc"), 0o755),
		os.WriteFile(filepath.Join(unpacked, "usr/kept"), []byte("k"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	for kind, source := range map[string]string{"reference": reference, "layout": layoutDir, "docker-archive": saved, "tar": plain, "directory": unpacked} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			l := launcherIn(t, state, map[string]string{"default": source})
			l.images.Dir = filepath.Join(state, "images")
			var steps []string
			if err := l.EnsureImage(t.Context(), "", func(s string) { steps = append(steps, s) }); err != nil {
				t.Fatal(err)
			}
			if kind != "directory" && len(steps) == 0 {
				t.Error("no progress was shown")
			}
			got, err := l.images.Find("")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(got.Rootfs, "usr/dropped")); err == nil {
				t.Error("a whiteout was ignored")
			}
			if kept, err := os.ReadFile(filepath.Join(got.Rootfs, "usr/kept")); err != nil || string(kept) != "k" {
				t.Errorf("%q %v", kept, err)
			}
			if env := strings.Join(got.Env, " "); kind != "tar" && kind != "directory" && env != "FLAVOUR=tiny PATH=/usr/only" {
				t.Errorf("environment %q", env)
			}
			id := newBox(t, l, nil)
			if st, err := l.State(t.Context(), id); err != nil || st.State != StateIdle {
				t.Errorf("a box of it: %+v, %v", st, err)
			}
			var start *StartError
			if _, err := exitOf(t.Context(), l, id, ExecSpec{Args: []string{"sh"}}); !errors.As(err, &start) {
				t.Errorf("a program it has not: %v", err)
			}
			for _, p := range []string{"usr/etc/resolv.conf", "usr/etc/passwd", "etc/resolv.conf"} {
				if _, err := os.Stat(filepath.Join(got.Rootfs, p)); err == nil {
					t.Errorf("the launcher wrote %s to the image", p)
				}
			}
			if steps = nil; l.EnsureImage(t.Context(), "", func(s string) { steps = append(steps, s) }) != nil || len(steps) > 0 {
				t.Errorf("built a second time: %v", steps)
			}
		})
	}
}

func TestFailedBuildLeavesNoImage(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	l := launcherIn(t, state, nil)
	l.images.Dir = filepath.Join(state, "images")
	broken, other := filepath.Join(state, "broken.tar"), filepath.Join(state, "other.tar")
	whole := archive(t, file("usr/x", strings.Repeat("x", 100_000)))
	if err := errors.Join(os.WriteFile(broken, whole[:50_000], 0o600), os.WriteFile(other, archive(t, file("data", "")), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{broken, other} {
		if err := l.EnsureImage(t.Context(), name, nil); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := l.EnsureImage(ctx, "debian", func(string) { cancel() }) // interrupted at its first step
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	entries, err := os.ReadDir(l.images.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".lock") {
			t.Errorf("%s is left", e.Name())
		}
	}
	for _, name := range []string{"/no/such/path", "UPPER case", "http://example.com/x", "a b"} {
		if err := l.EnsureImage(t.Context(), name, nil); err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
}

// capture captures a box, and returns the layers.
func capture(t *testing.T, l *Launcher, from func() (Captured, error)) []string {
	t.Helper()
	c, err := from()
	if err != nil {
		t.Fatal(err)
	}
	if c.Size <= 0 || c.Files <= 0 {
		t.Errorf("%+v", c)
	}
	return c.Layers
}

// TestBoxesOfASnapshot: boxes of a snapshot see the files of the original box but not each other's changes; each maps the
// owners into its own range of user IDs. The snapshot survives its box, and the layers of a long chain are merged.
func TestBoxesOfASnapshot(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	first := newBox(t, l, nil)
	want(t, rootSh(t, l, first, `set -e
		echo kept >/workspace/home/file; chown 1000:1000 /workspace/home/file; chmod 640 /workspace/home/file
		rm /etc/issue 2>/dev/null || rm /etc/passwd-; mkdir /opt/new; mkfifo /opt/new/pipe; ln /workspace/home/file /opt/new/linked
		cp /bin/true /opt/new/set; chmod 4755 /opt/new/set
		rm /.boxgate-init; mkdir -p /.boxgate-init/not/empty; echo ok`), "ok") // the last is where its copies have their first process
	layers := capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), first, "one", nil) })
	want(t, sh(t, l, first, "cat file"), "kept") // it continues
	if err := l.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	seen := `stat -c '%n %U:%G %a %h %F' /workspace/home/file /opt/new/* ; ls /etc/issue 2>&1 | cut -c1-10; cat /workspace/home/file`
	var told string
	for i := range 3 {
		id := newBox(t, l, func(s *Spec) { s.Layers = layers })
		r := rootSh(t, l, id, seen)
		if told == "" {
			told = r.out
		}
		if r.out != told || !strings.Contains(r.out, "/opt/new/linked boxuser:boxuser 640 2 regular file") || !strings.Contains(r.out, "/opt/new/set root:root 4755") {
			t.Errorf("%d: %s", i, r.out)
		}
		want(t, rootSh(t, l, id, `echo other >>/workspace/home/file; chown 5:5 /opt/new/set; rm /opt/new/pipe; echo ok`), "ok")
	}
	last := newBox(t, l, func(s *Spec) { s.Layers = layers })
	for i := range maxLayers + 1 {
		want(t, sh(t, l, last, fmt.Sprintf("echo %d >>/workspace/home/file; echo done", i)), "done")
		layers = capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), last, fmt.Sprint("chain", i), nil) })
		if err := l.Delete(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		last = newBox(t, l, func(s *Spec) { s.Layers = layers })
	}
	if len(layers) > maxLayers {
		t.Errorf("%d layers", len(layers))
	}
	want(t, sh(t, l, last, "wc -l <file; ls /etc/issue /etc/passwd- 2>/dev/null | wc -l"), "18\n1")
}

// TestOldCAIsNotTrusted: a box created from a snapshot trusts its own CA, but not that of the original box.
func TestOldCAIsNotTrusted(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	var ofBox [2][]byte
	for i, name := range []string{"boxgate box old", "boxgate box new"} {
		ofBox[i], _ = launchertest.Certificate(t, pkix.Name{CommonName: name, Organization: []string{"boxgate"}}, nil, nil)
	}
	old, ca := ofBox[0], ofBox[1]
	first := newBox(t, l, func(s *Spec) { s.CA = old })
	find := `grep -rlF "$(sed -n 6p /tmp/ca)" /etc /usr/local/share /opt/java 2>/dev/null | sort`
	before := rootSh(t, l, first, "cat >/tmp/ca <<'EOF'\n"+string(old)+"EOF\nupdate-ca-certificates >/dev/null 2>&1; "+find)
	if !strings.Contains(before.out, "/etc/ssl/certs/ca-certificates.crt") {
		t.Fatalf("the box does not trust its own CA: %+v", before)
	}
	layers := capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), first, "trusting", nil) })
	second := newBox(t, l, func(s *Spec) { s.CA, s.Layers, s.Hostname = ca, layers, "second" })
	for name, c := range map[string]struct {
		ca   []byte
		want bool
	}{"old": {old, false}, "new": {ca, true}} {
		r := rootSh(t, l, second, "cat >/tmp/ca <<'EOF'\n"+string(c.ca)+"EOF\n"+find)
		if (r.out != "") != c.want {
			t.Errorf("the %s CA is in %q", name, r.out)
		}
	}
	want(t, sh(t, l, second, "hostname; grep -c second /etc/hosts; grep -c ^SSL_CERT_FILE /etc/environment"), "second\n1\n1")
}

// TestLayersGoWhenNobodyNeedsThem: unneeded layers are removed, complete or not; a failed capture leaves nothing.
func TestLayersGoWhenNobodyNeedsThem(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	for _, name := range []string{"kept", "dropped"} {
		if _, err := l.Capture(t.Context(), id, name, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(l.layers.Path("cut.partial"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "../out"} { // an existing layer, and an invalid name
		if _, err := l.Capture(t.Context(), id, name, nil); err == nil {
			t.Errorf("%q was captured", name)
		}
	}
	if err := l.KeepLayers(func(layer string) bool { return layer == "kept" }); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(l.dirs.layers(), "*"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "kept" {
		t.Errorf("%v %v", left, err)
	}
	if err := l.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Capture(t.Context(), id, "late", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("of a box that is gone: %v", err)
	}
	if err := errors.Join(l.KeepLayers(func(string) bool { return false }), l.EmptyTrash(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestCapturesAreGivenUp: a capture that takes too long is cancelled: the box continues, and no layer remains.
func TestCapturesAreGivenUp(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	id := newBox(t, l, nil)
	for want, most := range map[string]captureLimits{
		"was frozen for too long": {snapshot.Terms{Entries: 1 << 20, Frozen: 1}, time.Hour},
		"took too long":           {snapshot.Terms{Entries: 1 << 20, Frozen: time.Hour}, 1},
		"more than 1 files":       {snapshot.Terms{Entries: 1, Frozen: time.Hour}, time.Hour},
	} {
		l.captures = most
		if _, err := l.Capture(t.Context(), id, "given-up", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
		if left, err := os.ReadDir(l.dirs.layers()); err != nil || len(left) > 0 {
			t.Errorf("%q: %v %v", want, left, err)
		}
		if st, err := l.State(t.Context(), id); err != nil || st.State != StateIdle {
			t.Errorf("%q: the box is %+v, %v", want, st, err)
		}
	}
	l.captures = defaultCaptureLimits
	capture(t, l, func() (Captured, error) { return l.Capture(t.Context(), id, "whole", nil) })
}

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
