package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"boxgate/internal/nightly"
)

// testImage has a layer for each content.
func testImage(t *testing.T, arch string, contents ...[]byte) v1.Image {
	t.Helper()
	img := empty.Image
	for i, content := range contents {
		data := archive(t, dir("usr"), file(fmt.Sprintf("usr/%d", i), string(content)))
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
	config.OS, config.Architecture, config.Config.Env = "linux", arch, []string{"A=b"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

// testRegistry serves an image of three layers, except for requests that hook answers.
type testRegistry struct {
	store     Store
	reference string
	image     v1.Image
	blobs     atomic.Int32 // layers sent
	hook      atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

func (r *testRegistry) set(hook func(http.ResponseWriter, *http.Request) bool) { r.hook.Store(&hook) }

func newRegistry(t *testing.T, img v1.Image) *testRegistry {
	t.Helper()
	r := &testRegistry{image: img}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if hook := r.hook.Load(); hook != nil && (*hook)(w, req) {
			return
		}
		if isLayer(r.image, req) {
			r.blobs.Add(1)
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	r.reference = strings.TrimPrefix(server.URL, "http://") + "/team/image:v1"
	r.store = Store{Dir: filepath.Join(t.TempDir(), "images"), impatient: true}
	ref, err := name.ParseReference(r.reference)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return r
}

// isLayer reports whether a request is for a layer of the image.
func isLayer(img v1.Image, req *http.Request) bool {
	manifest, err := img.Manifest()
	if err != nil || req.Method != http.MethodGet {
		return false
	}
	for _, l := range manifest.Layers {
		if strings.HasSuffix(req.URL.Path, "/blobs/"+l.Digest.String()) {
			return true
		}
	}
	return false
}

func (r *testRegistry) pull(ctx context.Context) ([]string, error) {
	var mu sync.Mutex
	var lines []string
	err := r.store.Ensure(ctx, r.reference, func(s string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, s)
	})
	return lines, err
}

func noise(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPullShowsItsProgress(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	big := noise(t, 3<<20)
	r := newRegistry(t, testImage(t, runtime.GOARCH, []byte("a"), big))
	lines, err := r.pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shown := strings.Join(lines, "\n")
	for _, want := range []string{"pulling ", "pulled ", " of 3.1 MB", "unpacking layer 2 of 2"} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	img, err := r.store.Find(r.reference)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(img.Rootfs, "usr/1"))
	if err != nil || !bytes.Equal(got, big) || img.Bytes < 3<<20 {
		t.Errorf("%d bytes, %v; the image has %d", len(got), err, img.Bytes)
	}
	if left, err := filepath.Glob(filepath.Join(r.store.Dir, ".*.layers")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// An interrupted pull continues with the missing layers.
func TestPullContinues(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	r := newRegistry(t, testImage(t, runtime.GOARCH, []byte("a"), []byte("b"), []byte("c"), []byte("d")))
	ctx, cancel := context.WithCancel(t.Context())
	layers := func() []string {
		kept, _ := filepath.Glob(filepath.Join(r.store.Dir, ".*.layers", "sha256-*")) // the pattern is valid
		return kept
	}
	r.set(func(_ http.ResponseWriter, req *http.Request) bool {
		if !isLayer(r.image, req) || r.blobs.Load() < 2 {
			return false
		}
		for len(layers()) == 0 {
			runtime.Gosched()
		}
		cancel()
		<-req.Context().Done()
		return true
	})
	if _, err := r.pull(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	if _, err := r.store.Find(r.reference); err == nil {
		t.Error("half an image is there")
	}
	kept := layers()
	var again atomic.Int32 // late requests of the interrupted pull may arrive, but not for a layer that it kept
	r.set(func(_ http.ResponseWriter, req *http.Request) bool {
		for _, file := range kept {
			if strings.HasSuffix(req.URL.Path, strings.TrimPrefix(filepath.Base(file), "sha256-")) {
				again.Add(1)
			}
		}
		return false
	})
	if _, err := r.pull(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := again.Load(); n > 0 {
		t.Errorf("%d layers of 4 were there, and %d of them were fetched again", len(kept), n)
	}
}

// A kept layer that has been damaged is not used.
func TestPullVerifiesWhatItKept(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	r := newRegistry(t, testImage(t, runtime.GOARCH, noise(t, 10000)))
	manifest, err := r.image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	src, err := r.store.source(r.reference)
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(r.store.blobs(src.key), "sha256-"+manifest.Layers[0].Digest.Hex)
	other := make([]byte, manifest.Layers[0].Size) // a well-formed layer of the same size
	copy(other, archive(t, dir("usr"), file("usr/other", "")))
	if err := errors.Join(os.MkdirAll(filepath.Dir(kept), 0o700), os.WriteFile(kept, other, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.pull(t.Context()); err == nil {
		t.Fatal("another layer was unpacked")
	}
	if _, err := r.pull(t.Context()); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestPullSurvivesABadRegistry(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for name, bad := range map[string]func(http.ResponseWriter, *http.Request){
		"errors":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"silence": func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() },
		"half": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half"))
		},
		"other data": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("something else")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, testImage(t, runtime.GOARCH, []byte("a")))
			var failed atomic.Int32
			r.set(func(w http.ResponseWriter, req *http.Request) bool {
				if !isLayer(r.image, req) || failed.Add(1) > 2 {
					return false
				}
				bad(w, req)
				return true
			})
			if _, err := r.pull(t.Context()); err != nil || failed.Load() < 3 {
				t.Errorf("after %d requests: %v", failed.Load(), err)
			}
		})
	}
}

func TestPullRefuses(t *testing.T) {
	t.Parallel()
	type hooks = func(*testRegistry) func(http.ResponseWriter, *http.Request) bool
	always := func(status int) hooks {
		return func(*testRegistry) func(http.ResponseWriter, *http.Request) bool {
			return func(w http.ResponseWriter, req *http.Request) bool {
				w.WriteHeader(status)
				return true
			}
		}
	}
	layer := func(answer string) hooks {
		return func(r *testRegistry) func(http.ResponseWriter, *http.Request) bool {
			return func(w http.ResponseWriter, req *http.Request) bool {
				if !isLayer(r.image, req) {
					return false
				}
				_, _ = io.WriteString(w, answer)
				return true
			}
		}
	}
	for name, c := range map[string]struct {
		arch  string
		hook  hooks
		says  string
		check string // error of Check; empty: no error
	}{
		"no credentials":     {runtime.GOARCH, always(http.StatusUnauthorized), "docker login", "docker login"},
		"no such image":      {runtime.GOARCH, always(http.StatusNotFound), "has no image", "has no image"},
		"too many pulls":     {runtime.GOARCH, always(http.StatusTooManyRequests), "limits pulls", "limits pulls"},
		"forbidden":          {runtime.GOARCH, always(http.StatusForbidden), "docker login", "docker login"},
		"wrong digest":       {runtime.GOARCH, layer("something else"), "verifying sha256 checksum", ""},
		"endless":            {runtime.GOARCH, layer(strings.Repeat("x", 1<<20)), "larger than its manifest says", ""},
		"other architecture": {"m68k", layer(""), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, testImage(t, c.arch, []byte("a")))
			r.set(c.hook(r))
			err := r.store.Check(t.Context(), r.reference)
			if (err == nil) != (c.check == "") || err != nil && !strings.Contains(err.Error(), c.check) {
				t.Errorf("check: %v", err)
			}
			if _, err := r.pull(t.Context()); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			if _, err := r.store.Find(r.reference); err == nil {
				t.Error("an image is there")
			}
		})
	}
}

func TestCheckSaysThatARegistryCannotBeReached(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	s := Store{Dir: t.TempDir()}
	err := s.Check(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/team/image:v1")
	if err == nil || !strings.Contains(err.Error(), "docker save") {
		t.Errorf("%v", err)
	}
}

// Docker's client configuration has the credentials.
func TestPullWithCredentials(t *testing.T) { //nolint:paralleltest // it sets a variable of the process
	nightly.Root(t)
	r := newRegistry(t, testImage(t, runtime.GOARCH, []byte("a")))
	r.set(func(w http.ResponseWriter, req *http.Request) bool {
		if user, password, _ := req.BasicAuth(); user == "me" && password == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	host, _, _ := strings.Cut(r.reference, "/")
	config, err := json.Marshal(map[string]any{"auths": map[string]any{
		host: map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte("me:secret"))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	if _, err := r.pull(t.Context()); err != nil {
		t.Error(err)
	}
}

// Concurrent pulls of one image are shared.
func TestPullIsSharedByAll(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	r := newRegistry(t, testImage(t, runtime.GOARCH, []byte("a"), []byte("b")))
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := r.pull(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := r.blobs.Load(); n != 2 {
		t.Errorf("%d layers were sent", n)
	}
}

func TestImageInUseIsNotRemoved(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	r := newRegistry(t, testImage(t, runtime.GOARCH, []byte("a")))
	if _, err := r.pull(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := t.TempDir()
	img, err := r.store.Use(r.reference, box)
	if err != nil {
		t.Fatal(err)
	}
	if at, err := r.store.At(img.Key, img.Rootfs); err != nil || at.Rootfs != img.Rootfs {
		t.Errorf("by its key: %+v, %v", at, err)
	}
	for _, name := range []string{r.reference, img.Key} {
		if err := r.store.Remove(t.Context(), name); !errors.Is(err, ErrInUse) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := r.store.List(); err != nil || len(list) != 1 || len(list[0].Holders) != 1 || list[0].Source != r.reference || list[0].Bytes == 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := os.Remove(box); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../victim", "no-such-image", ".", "/"} {
		if err := r.store.Remove(t.Context(), name); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.store.Remove(t.Context(), img.Key); err != nil {
		t.Error(err)
	}
	if _, err := r.store.Use(r.reference, box); err == nil {
		t.Error("the image is still there")
	}
	if left, err := filepath.Glob(filepath.Join(r.store.Dir, "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// A registry declares such a large layer that the sum overflows. No layer is downloaded.
func TestManifestOfAnEndlessImage(t *testing.T) {
	t.Parallel()
	r := newRegistry(t, testImage(t, runtime.GOARCH, []byte("a"), []byte("b")))
	m, err := r.image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	m = m.DeepCopy()
	m.Layers[1].Size, m.Layers[1].Digest = math.MaxInt64, v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("ab", 32)}
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	r.set(func(w http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", string(m.MediaType))
			_, _ = w.Write(raw)
			return true
		}
		for _, l := range m.Layers {
			if strings.HasSuffix(req.URL.Path, l.Digest.Hex) {
				t.Errorf("%s was asked for", req.URL.Path)
			}
		}
		return false
	})
	if _, err := r.pull(t.Context()); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("%v", err)
	}
}
