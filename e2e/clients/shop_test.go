package clients

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/e2e/harness"
)

// shopHost has a header rule. It refuses requests without the header.
const shopHost = "shop.example.com"

// shop is a host with a public page, a git repository, and a package called tiny for every package manager.
type shop struct {
	pages map[string][]byte // by clean path
	git   http.Handler

	mu     sync.Mutex
	paths  map[string]bool // requested with the header
	naked  []string        // requested without it
	change chan struct{}   // closed and replaced when paths changes
}

// openShop adds the shop's host to the world.
func openShop(t *testing.T, w *harness.World) *shop {
	t.Helper()
	s := &shop{pages: map[string][]byte{}, paths: map[string]bool{}, change: make(chan struct{})}
	s.stockPython(t)
	s.stockNode(t)
	s.stockCargo(t)
	s.stockApt(t)
	s.stockGit(t)
	if err := w.Net.AddHost(shopHost, "198.51.100.120", "2001:db8:1::120"); err != nil {
		t.Fatal(err)
	}
	if err := w.Net.ServeHTTP(shopHost, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// ServeHTTP refuses and records requests without the key.
func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if r.TLS == nil || len(r.Header["X-Key"]) != 1 || r.Header.Get("X-Key") != harness.Canary {
		s.naked = append(s.naked, r.URL.Path)
		s.mu.Unlock()
		http.Error(w, "no key", http.StatusUnauthorized)
		return
	}
	s.paths[path.Clean(r.URL.Path)] = true
	close(s.change)
	s.change = make(chan struct{})
	s.mu.Unlock()
	page, found := s.pages[path.Clean(r.URL.Path)]
	switch {
	case strings.HasPrefix(r.URL.Path, "/seen/"):
		fmt.Fprintln(w, "welcome")
	case strings.HasPrefix(r.URL.Path, "/git/"):
		s.git.ServeHTTP(w, r)
	case found:
		_, _ = w.Write(page)
	default:
		http.NotFound(w, r)
	}
}

// await waits until a path has been requested with the key.
func (s *shop) await(t *testing.T, path string) {
	t.Helper()
	limit := time.After(harness.Patience)
	for {
		s.mu.Lock()
		there, change := s.paths[path], s.change
		s.mu.Unlock()
		if there {
			return
		}
		select {
		case <-change:
		case <-limit:
			t.Errorf("nobody asked for %s with the key", path)
			return
		}
	}
}

// requested reports whether a path has been requested with the key.
func (s *shop) requested(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paths[path]
}

// keyless returns the paths requested without the key.
func (s *shop) keyless() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.naked
}

// entry is one file of an archive.
type entry struct{ name, content string }

// tarball returns a compressed tar of files.
func tarball(t *testing.T, files ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		_, _ = w.Write([]byte(f.content))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// wheelName is the file name of [wheel].
const wheelName = "tiny-1.0-py3-none-any.whl"

// wheel returns a Python package (PEP 427).
func wheel(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range []entry{
		{"tiny.py", "greeting = 'welcome'\n"},
		{"tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"},
		{"tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: shop\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"tiny-1.0.dist-info/RECORD", "tiny.py,,\ntiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n"},
	} {
		file, err := w.Create(f.name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = file.Write([]byte(f.content))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// stockPython adds a package index (PEP 503) with one wheel.
func (s *shop) stockPython(t *testing.T) {
	tiny := wheel(t)
	s.pages["/simple/tiny"] = fmt.Appendf(nil, "<!DOCTYPE html><a href='/files/%s#sha256=%x'>%s</a>", wheelName, sha256.Sum256(tiny), wheelName)
	s.pages["/files/"+wheelName] = tiny
}

// stockNode adds an npm registry with one package.
func (s *shop) stockNode(t *testing.T) {
	pack := tarball(t, entry{"package/package.json", `{"name":"tiny","version":"1.0.0"}`}, entry{"package/index.js", "module.exports='welcome'\n"})
	sum := sha512.Sum512(pack)
	tarURL := "/npm/tiny/-/tiny-1.0.0.tgz"
	s.pages[tarURL] = pack
	s.pages["/npm/tiny"] = asJSON(t, map[string]any{
		"name": "tiny", "dist-tags": map[string]string{"latest": "1.0.0"},
		"versions": map[string]any{"1.0.0": map[string]any{
			"name": "tiny", "version": "1.0.0",
			"dist": map[string]string{"tarball": "https://" + shopHost + tarURL, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])},
		}},
	})
}

// stockCargo adds a sparse registry (RFC 2789) with one crate.
func (s *shop) stockCargo(t *testing.T) {
	crate := tarball(t, entry{"tiny-1.0.0/Cargo.toml", "[package]\nname = \"tiny\"\nversion = \"1.0.0\"\n"}, entry{"tiny-1.0.0/src/lib.rs", "\n"})
	sum := sha256.Sum256(crate)
	s.pages["/crates/dl/tiny/1.0.0/download"] = crate
	s.pages["/crates/config.json"] = asJSON(t, map[string]string{"dl": "https://" + shopHost + "/crates/dl"})
	s.pages["/crates/ti/ny/tiny"] = append(asJSON(t, map[string]any{
		"name": "tiny", "vers": "1.0.0", "deps": []string{}, "cksum": hex.EncodeToString(sum[:]), "features": map[string]any{}, "yanked": false,
	}), '\n')
}

// stockApt adds a Debian repository with one package (deb(5) is an ar of three files).
func (s *shop) stockApt(t *testing.T) {
	control := "Package: tiny\nVersion: 1.0\nArchitecture: all\nMaintainer: shop <shop@example.com>\nDescription: tiny\n"
	var deb bytes.Buffer
	deb.WriteString("!<arch>\n")
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"debian-binary", []byte("2.0\n")},
		{"control.tar.gz", tarball(t, entry{"./control", control})},
		{"data.tar.gz", tarball(t, entry{"./usr/bin/tiny", "#!/bin/sh\necho welcome\n"})},
	} {
		fmt.Fprintf(&deb, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", f.name, 0, 0, 0, "100644", len(f.data))
		deb.Write(f.data)
		if len(f.data)%2 == 1 {
			deb.WriteByte('\n')
		}
	}
	sum := sha256.Sum256(deb.Bytes())
	s.pages["/apt/tiny.deb"] = deb.Bytes()
	s.pages["/apt/Packages"] = fmt.Appendf(nil, "%sFilename: tiny.deb\nSize: %d\nSHA256: %x\nMD5sum: %x\n\n", control, deb.Len(), sum, md5.Sum(deb.Bytes()))
}

// stockGit adds a repository with one commit, served by git's backend.
func (s *shop) stockGit(t *testing.T) {
	root := t.TempDir()
	work := filepath.Join(root, "work")
	for _, args := range [][]string{
		{"init", "-q", "-b", "main", work},
		{"-C", work, "-c", "user.name=Shop", "-c", "user.email=shop@example.com", "commit", "-q", "--allow-empty", "-m", "welcome"},
		{"clone", "-q", "--bare", work, filepath.Join(root, "tiny.git")},
	} {
		if out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	s.git = harness.GitServer(t, root, "/git")
}

// asJSON encodes values that can always be encoded.
func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
