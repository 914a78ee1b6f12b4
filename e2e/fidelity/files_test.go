package fidelity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// endless is reproducible content: the same bytes for the same seed.
type endless struct{ at uint64 }

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		if e.at%64 == 0 {
			e.at += 1 // keeps the period odd
		}
		b[i] = byte(e.at * 2654435761 >> 13)
		e.at++
	}
	return len(b), nil
}

// fileSize exceeds the allowed growth of the gateway.
var fileSize = nightly.Size[int64](192<<20, 1<<30)

// TestLargeFile: a large file passes the files API both ways, and the gateway buffers almost none of it.
func TestLargeFile(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	gateway := &fidelity{Intruder: &harness.Intruder{World: w}}
	before := gateway.resetPeak()
	sent := sha256.New()
	body, feed := io.Pipe()
	form := multipart.NewWriter(feed)
	go func() {
		err := form.WriteField("paths", "/workspace/home/in/big")
		var part io.Writer
		if err == nil {
			part, err = form.CreateFormFile("files", "big")
		}
		if err == nil {
			_, err = io.CopyBuffer(part, io.TeeReader(io.LimitReader(&endless{}, fileSize), sent), make([]byte, 1<<20))
		}
		if err == nil {
			err = form.Close()
		}
		feed.CloseWithError(err)
	}()
	resp, err := w.Client.Stream(t.Context(), http.MethodPost, api.BoxPath(box, "files", "upload"), form.FormDataContentType(), body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	want := hex.EncodeToString(sent.Sum(nil))
	if got := w.MustSh(box, "sha256sum <in/big; stat -c '%s %U' in/big; ls -A in"); got != fmt.Sprintf("%s  -\n%d boxuser\nbig\n", want, fileSize) {
		t.Errorf("the box has %q, want %s", got, want)
	}
	resp, err = w.Client.Stream(t.Context(), http.MethodGet, api.BoxPath(box, "files", "download")+"?folder=in/big", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	back := sha256.New()
	if n, err := io.Copy(back, resp.Body); n != fileSize || err != nil {
		t.Fatalf("%d bytes came back: %v", n, err)
	}
	if got := hex.EncodeToString(back.Sum(nil)); got != want {
		t.Errorf("%s came back, want %s", got, want)
	}
	if _, peak := gateway.memory(); peak-before > 128<<20 {
		t.Errorf("the gateway grew by %d MiB", (peak-before)>>20)
	}
}

// TestUploadThatBreaksOff: an aborted upload leaves the old file, and no other.
func TestUploadThatBreaksOff(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})
	w.MustSh(box, "echo old >old")
	for _, name := range []string{"old", "new"} {
		body, feed := io.Pipe()
		form := multipart.NewWriter(feed)
		go func() {
			_ = form.WriteField("paths", name)
			part, _ := form.CreateFormFile("files", name)
			_, _ = io.Copy(part, io.LimitReader(&endless{}, 8<<20))
			feed.CloseWithError(errors.New("the client breaks off"))
		}()
		if resp, err := w.Client.Stream(t.Context(), http.MethodPost, api.BoxPath(box, "files", "upload"), form.FormDataContentType(), body); err == nil {
			resp.Body.Close()
			t.Fatal("half an upload was accepted")
		}
	}
	w.UntilEvery(10*time.Millisecond, "what was there is all that is there", func() bool { return w.MustSh(box, "cat old; ls -A") == "old\nold\n" })
}
