package boxfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs/worker"
)

// openSFTP opens a session and connects a client to it.
func openSFTP(t *testing.T, dir string) (*Session, *sftp.Client, chan error) {
	t.Helper()
	s, err := OpenSFTP(t.Context(), Config{Root: openDir(t, dir), UID: user, GID: user, Join: func(int) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	near, far := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Serve(far) }()
	client, err := sftp.NewClientPipe(near, near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return s, client, served
}

// TestSFTPIsConfined: the server of SFTP sees only the root of the box, with the permissions of the box's user, and serves links, modes
// and writes at an offset.
func TestSFTPIsConfined(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	outside := t.TempDir() + "/outside"
	for name, mode := range map[string]os.FileMode{dir + "/root-only": 0o600, dir + "/readable": 0o644, outside: 0o666} {
		if err := errors.Join(os.WriteFile(name, []byte("content"), mode), os.Chmod(name, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	_, client, served := openSFTP(t, dir)
	if _, err := client.Open(outside); err == nil {
		t.Fatal("a file of the host was opened")
	}
	for path, want := range map[string]error{
		"/root-only": fs.ErrPermission, "/link": fs.ErrNotExist, outside: fs.ErrNotExist, strings.Repeat("../", 40) + outside: fs.ErrNotExist, "/proc/self/status": fs.ErrNotExist,
	} {
		if f, err := client.Open(path); !errors.Is(err, want) {
			t.Errorf("%s: %v, %v", path, f, err)
		}
	}
	if _, err := client.Create("/new"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file of root's directory: %v", err)
	}
	if err := client.Chown("/readable", user, user); err == nil {
		t.Error("the owner of a file was changed")
	}
	f, err := client.Create("a")
	if err != nil {
		t.Fatal(err)
	}
	_, first := f.WriteAt([]byte("tail"), 4)
	_, second := f.WriteAt([]byte("head"), 0)
	if err := errors.Join(first, second, f.Chmod(0o600), f.Close(), client.Symlink("a", "to-a"), client.Rename("a", "b"), client.Rename("b", "a")); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+worker.Home+"/a", &st); err != nil || st.Uid != user || st.Gid != user || st.Mode&0o777 != 0o600 {
		t.Errorf("%+v, %v", st, err)
	}
	if r, err := client.Open("to-a"); err != nil {
		t.Error(err)
	} else if data, err := io.ReadAll(r); string(data) != "headtail" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	_ = client.Close()
	if err := <-served; err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the end of a session: %v", err)
	}
}

// TestSFTPEndsWithItsProcess: a session ends when its process does, and one with bytes that are not SFTP has no effect on others.
func TestSFTPEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	dir := newRoot(t)
	s, client, served := openSFTP(t, dir)
	if err := unix.Kill(s.Pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("after its process was killed: %v", err)
	}
	_ = client.Close()

	s, err := OpenSFTP(t.Context(), Config{Root: openDir(t, dir), UID: user, GID: user, Join: func(int) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Serve(struct {
		io.Reader
		io.Writer
	}{bytes.NewReader(bytes.Repeat([]byte{0xff}, 1<<20)), io.Discard}); err != nil && !strings.Contains(err.Error(), "ended") {
		t.Errorf("bytes that are not SFTP: %v", err)
	}
}

// TestTransfersOfABoxAreBounded: one session above the limit of a box is refused, without waiting.
func TestTransfersOfABoxAreBounded(t *testing.T) {
	t.Parallel()
	var turns Limiter
	var ends []func()
	for range PerBox {
		done, ok := turns.TryAcquire("a")
		if !ok {
			t.Fatal("refused below the limit")
		}
		ends = append(ends, done)
	}
	if _, ok := turns.TryAcquire("a"); ok {
		t.Error("a session above the limit")
	}
	if done, ok := turns.TryAcquire("b"); !ok {
		t.Error("a session of another box")
	} else {
		done()
	}
	ends[0]()
	if done, ok := turns.TryAcquire("a"); !ok {
		t.Error("a session after another has ended")
	} else {
		done()
	}
	for _, end := range ends {
		end()
	}
	if len(turns.boxes) > 0 {
		t.Errorf("%d boxes are remembered", len(turns.boxes))
	}
}
