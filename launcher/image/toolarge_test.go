package image

import (
	"encoding/json"
	"math"
	"net/http"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

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
