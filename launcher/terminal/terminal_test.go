package terminal

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// TestOnlyTerminalsAreTaken: if a box's root has replaced /dev/ptmx, only the master side of a terminal is accepted from
// the runtime.
func TestOnlyTerminalsAreTaken(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	master := open(t, "/dev/pts/ptmx")
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "ptmx"))
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close(); r.Close(); w.Close() })
	for name, sent := range map[string][]*os.File{
		"a file": {file}, "a pipe": {w}, "a device": {open(t, "/dev/null")}, "a slave": {open(t, filepath.Join("/dev/pts", strconv.Itoa(n)))},
		"nothing": nil, "two masters": {master, open(t, "/dev/pts/ptmx")},
	} {
		if f, err := receive(t, sent); err == nil {
			f.Close()
			t.Errorf("%s is taken for a terminal", name)
		}
	}
	f, err := receive(t, []*os.File{master})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Resize(f, Size{Rows: 5, Cols: 6}); err != nil {
		t.Error(err)
	}
	if size, err := unix.IoctlGetWinsize(int(master.Fd()), unix.TIOCGWINSZ); err != nil || size.Row != 5 || size.Col != 6 {
		t.Errorf("%+v %v", size, err)
	}
}

// receive returns the file received when a runtime sends some files.
func receive(t *testing.T, sent []*os.File) (*os.File, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var fds []int
	for _, f := range sent {
		fds = append(fds, int(f.Fd()))
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix([]byte("/dev/ptmx"), rights, nil); err != nil {
		t.Fatal(err)
	}
	return s.Receive()
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
