package launcher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"boxgate/launcher/launchertest"
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
