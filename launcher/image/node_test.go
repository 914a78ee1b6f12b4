package image

import (
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// TestReleaseIsTheOneThatWasPublished: only an archive with the pinned digest is used, from whatever registry, and a
// refused one leaves no file.
func TestReleaseIsTheOneThatWasPublished(t *testing.T) {
	const published = "the archive"
	served := published
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/node/-/node-1.tgz" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, served)
	}))
	defer registry.Close()
	t.Setenv("npm_config_registry", registry.URL)
	sum := sha512.Sum512([]byte(published))
	r := release{name: "Node 1", path: "node/-/node-1.tgz", digest: base64.StdEncoding.EncodeToString(sum[:])}
	dir := t.TempDir()
	f, err := r.fetch(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != published {
		t.Errorf("%q, %v", got, err)
	}
	for _, served = range []string{"", published + " ", "the Archive", published[1:]} {
		if f, err := r.fetch(t.Context(), dir); !errors.Is(err, errDigest) {
			t.Errorf("%q is used: %v, %v", served, f, err)
		}
	}
	r.path = "node/-/none.tgz"
	if _, err := r.fetch(t.Context(), dir); err == nil || errors.Is(err, errDigest) {
		t.Errorf("a missing archive: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
