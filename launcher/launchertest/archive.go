package launchertest

import (
	"archive/tar"
	"bytes"
	"testing"
	"time"
)

// Archive returns a tar of entries. Their sizes are set from the contents.
func Archive(t testing.TB, entries ...Entry) []byte {
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
		h.Size = int64(len(e.Content))
		h.ModTime = time.Unix(1_000_000_000, 0)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.Content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Entry is one entry of an archive.
type Entry struct {
	tar.Header
	Content string
}

// File returns an entry for a file.
func File(name, content string) Entry { return Entry{tar.Header{Name: name}, content} }

// Dir returns an entry for a directory.
func Dir(name string) Entry {
	return Entry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

// Link returns an entry for a symbolic link.
func Link(name, target string) Entry {
	return Entry{tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}, ""}
}

// Hardlink returns an entry for another name of a file.
func Hardlink(name, target string) Entry {
	return Entry{tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeLink}, ""}
}
