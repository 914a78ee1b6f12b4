package launcher

import (
	"archive/tar"
	"bytes"
	"testing"
	"time"
)

// archive makes a tar of entries; a header without a size gets that of its content.
func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := e.Header
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		h.Size = int64(len(e.content))
		h.ModTime = time.Unix(1_000_000_000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type entry struct {
	tar.Header
	content string
}

func file(name, content string) entry { return entry{tar.Header{Name: name}, content} }
func dir(name string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}
func link(name, target string) entry {
	return entry{tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}, ""}
}
func hardlink(name, target string) entry {
	return entry{tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeLink}, ""}
}
