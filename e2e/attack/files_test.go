package attack

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// filesBox is a box whose files are changed through the API.
type filesBox struct {
	*harness.World
	id string
}

func newFilesBox(t *testing.T) filesBox {
	t.Helper()
	w := harness.Shared(t)
	return filesBox{w, w.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})}
}

// get calls files/WHAT with a query.
func (b filesBox) get(what string, query url.Values, out any) error {
	return b.Client.Get(b.T.Context(), api.BoxPath(b.id, "files", what)+"?"+query.Encode(), out)
}

func (b filesBox) read(path string) (string, error) {
	var got struct{ Content string }
	err := b.get("read", url.Values{"path": {path}}, &got)
	return got.Content, err
}

func (b filesBox) post(what string, body map[string]any) error {
	return b.Client.Do(b.T.Context(), "POST", api.BoxPath(b.id, "files", what), body, nil)
}

// status returns the status of a refusal, or 0 if err is nil.
func status(err error) int {
	if err == nil {
		return 0
	}
	var refused *api.ResponseError
	if !errors.As(err, &refused) {
		return -1
	}
	return refused.Status
}

// bait creates a world-readable and a world-writable file of the host, in a directory that boxes have under the same
// name.
func bait(t *testing.T) (dir, secret string) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "bait-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	secret = "of the host: " + filepath.Base(dir)
	for _, f := range []func() error{
		func() error { return os.Chmod(dir, 0o777) },
		func() error { return os.WriteFile(filepath.Join(dir, "file"), []byte(secret), 0o600) },
		func() error { return os.Chmod(filepath.Join(dir, "file"), 0o666) },
		func() error { return os.WriteFile(filepath.Join(dir, "of-the-host"), nil, 0o600) },
	} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	return dir, secret
}

// A box swaps a directory and a link to a directory of the host thousands of times, while the API reads, writes, lists,
// uploads and removes files at that path. No file of the host is read or changed.
func TestAttackFilesRaceToTheHost(t *testing.T) {
	t.Parallel()
	b := newFilesBox(t)
	dir, secret := bait(t)
	b.MustSh(b.id, fmt.Sprintf("mkdir -p a/inner %s && echo inside >a/file && ln -s %s b && ln -s ../../../../../../../../..%s up && ln -s /proc/1/root%s magic", dir, dir, dir, dir))
	b.MustSh(b.id, fmt.Sprintf("echo inside >%s/file", dir))
	wait := b.Background(b.id, `python3 -c '
import ctypes, os, sys
libc = ctypes.CDLL(None)
n = 0
while not os.path.exists("/workspace/home/stop"):
    libc.renameat2(-100, b"a", -100, b"b", 2)
    n += 1
print(n)'`, new(bytes.Buffer))
	for i, end := 0, time.Now().Add(nightly.Size(4*time.Second, 20*time.Second)); i < 10 || i < 150 && time.Now().Before(end); i++ {
		for _, name := range []string{"a/file", "b/file", "up/file", "magic/file", "a/../b/file", "b/../../.." + dir + "/file", dir + "/file"} {
			if got, err := b.read(name); err == nil && strings.Contains(got, secret) {
				t.Fatalf("%s: read %q of the host", name, got)
			}
		}
		for what, body := range map[string]map[string]any{
			"write":  {"path": "a/file", "content": "inside"},
			"mkdir":  {"path": fmt.Sprintf("b/made-%d/deep", i), "parents": true},
			"rename": {"from": "a/file", "to": "b/file"},
			"remove": {"path": "b/inner", "recursive": true},
		} {
			_ = b.post(what, body) // most fail during an exchange
		}
		for _, folder := range []string{"a", "up"} {
			var list struct{ Files []struct{ Name string } }
			if err := b.get("list", url.Values{"folder": {folder}}, &list); err == nil && strings.Contains(fmt.Sprint(list), "of-the-host") {
				t.Fatalf("%s: listed %v of the host", folder, list)
			}
		}
	}
	b.MustSh(b.id, "touch stop")
	if code, err := wait(); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	unharmed(t, dir, secret)
}

// unharmed fails the test if the directory of the host has changed.
func unharmed(t *testing.T, dir, secret string) {
	t.Helper()
	if data, err := os.ReadFile(filepath.Join(dir, "file")); string(data) != secret || err != nil {
		t.Errorf("the file of the host is %q, %v", data, err)
	}
	if entries, err := os.ReadDir(dir); len(entries) != 2 || err != nil {
		t.Errorf("the directory of the host has %v, %v", entries, err)
	}
}

// Links and spellings that point out of a box resolve within it.
func TestAttackFilesNameTheHost(t *testing.T) {
	t.Parallel()
	b := newFilesBox(t)
	dir, secret := bait(t)
	root, key := filepath.Join(b.Dir, "state", "api-key"), b.KeyFile("api-key")
	b.MustSh(b.id, fmt.Sprintf("ln -s %s link; ln -s %s/file file; ln -s ../../../../../..%s up; ln -s /proc/1/root root; ln -s /proc/1/cwd cwd; mkdir d; ln -s %s key", dir, dir, dir, root))
	for _, name := range []string{
		"link/file", "file", "up/file", "root" + dir + "/file", "cwd" + dir + "/file", dir + "/file", "/proc/1/root" + dir + "/file", "/proc/self/root" + dir + "/file",
		"../../.." + dir + "/file", "/../../.." + dir + "/file", "d/../../../.." + dir + "/file", "//" + dir + "//file", "key", root,
	} {
		if got, err := b.read(name); err == nil && (strings.Contains(got, secret) || strings.Contains(got, key)) {
			t.Errorf("read %q by %q", got, name)
		}
		err := b.post("write", map[string]any{"path": name, "content": "x"})
		if code := status(err); code != 0 && (code < 400 || code > 499) {
			t.Errorf("writing %q: %v", name, err)
		}
		_ = b.post("remove", map[string]any{"path": name})
	}
	unharmed(t, dir, secret)
	if b.KeyFile("api-key") != key {
		t.Error("the key of the host was replaced")
	}
}

// A call that a box tries to block, or to make too large, is answered promptly.
func TestAttackFilesThatNeverEnd(t *testing.T) {
	t.Parallel()
	b := newFilesBox(t)
	b.MustSh(b.id, "mkfifo pipe; truncate -s 8E sparse || truncate -s 7E sparse || truncate -s 15T sparse; mkdir many; cd many; python3 -c 'for i in range(30000): open(str(i), \"w\").close()'")
	for path, want := range map[string]int{"pipe": 422, "/dev/zero": 422, "/dev/full": 422, "sparse": 413, "many": 409, "/proc/kmsg": 403} {
		if _, err := b.read(path); status(err) != want {
			t.Errorf("reading %s: %v, want %d", path, err, want)
		}
	}
	for _, path := range []string{"pipe", "/dev/null"} {
		if err := b.post("write", map[string]any{"path": path, "content": "x"}); status(err) != 422 {
			t.Errorf("writing %s: %v", path, err)
		}
	}
	var list struct {
		Files     []struct{ Name string }
		Truncated bool
	}
	if err := b.get("list", url.Values{"folder": {"many"}}, &list); err != nil || len(list.Files) != 20000 || !list.Truncated {
		t.Errorf("%d entries, truncated %v, %v", len(list.Files), list.Truncated, err)
	}
}

// A box without free processes or disk space gets errors for itself only; the gateway and other boxes continue.
func TestAttackFilesOfAFullBox(t *testing.T) {
	t.Parallel()
	b := newFilesBox(t)
	other := filesBox{b.World, b.Create(map[string]any{"network_policy": map[string]any{"mode": "deny-all"}})}
	b.MustSh(b.id, "dd if=/dev/zero of=/dev/shm/all bs=1M 2>/dev/null; true")
	if err := b.post("write", map[string]any{"path": "/dev/shm/more", "content": strings.Repeat("x", 1<<20)}); status(err) != http.StatusInsufficientStorage {
		t.Errorf("a file without room: %v", err)
	}
	if got := b.MustSh(b.id, "ls -A /dev/shm"); got != "all\n" {
		t.Errorf("left behind: %q", got)
	}
	if err := other.post("write", map[string]any{"path": "/dev/shm/more", "content": "x"}); err != nil {
		t.Errorf("another box: %v", err)
	}
}
