package worker

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is the user that the tests of root become.
const nobody = 65534

// box is a directory for the requests of a test, with a server in this process. The process keeps the host's root: packages
// boxfs and launcher test that a worker is confined. The tests of this package do not run in parallel, because a worker
// changes its working directory, and they change its user.
type box struct {
	t   *testing.T
	dir string
	in  *os.File
	out *bufio.Reader

	stop func() error
}

// newBox starts a server for a new directory.
func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{t: t, dir: newDir(t)}
	b.start()
	return b
}

// newDir makes a directory on a tmpfs, which is an accepted type, and makes its owner, never root, the user of this
// process.
func newDir(t *testing.T) string {
	t.Helper()
	t.Chdir("/")
	dir, err := os.MkdirTemp("/dev/shm", "worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				return os.Chmod(path, 0o700)
			}
			return err
		})
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if os.Getuid() == 0 {
		become(t, dir)
	}
	old := syscall.Umask(0o022)
	t.Cleanup(func() { syscall.Umask(old) })
	return dir
}

// become changes the user of this process to nobody until the test ends, and makes it the owner of a directory.
func become(t *testing.T, dir string) {
	t.Helper()
	err := errors.Join(os.Chown(dir, nobody, nobody), syscall.Setresgid(nobody, nobody, 0), syscall.Setresuid(nobody, nobody, 0))
	t.Cleanup(func() {
		if err := errors.Join(syscall.Setresuid(0, 0, 0), syscall.Setresgid(0, 0, 0)); err != nil {
			panic(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// start starts a server, as a session starts another process after one has ended.
func (b *box) start() {
	b.t.Helper()
	itsIn, in, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, itsOut, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		err := serve(itsIn, itsOut)
		itsIn.Close()
		itsOut.Close()
		ended <- err
	}()
	b.in, b.out = in, bufio.NewReader(out)
	b.stop = sync.OnceValue(func() error {
		in.Close()
		err := <-ended
		out.Close()
		return err
	})
	b.t.Cleanup(func() { _ = b.stop() })
}

// at returns the path of a name in the box.
func (b *box) at(name string) []byte { return []byte(b.dir + "/" + name) }

// do makes a request without content.
func (b *box) do(req Request) (Answer, error) {
	b.t.Helper()
	if err := Send(b.in, req); err != nil {
		b.t.Fatal(err)
	}
	return b.answer()
}

func (b *box) answer() (Answer, error) {
	b.t.Helper()
	var a Answer
	if err := Receive(b.out, &a); err != nil {
		b.t.Fatalf("no answer: %v", err)
	}
	if a.Failure != nil {
		return a, a.Failure
	}
	return a, nil
}

// send makes a request with content. If the server does not read all of it, another server is started for the next request.
func (b *box) send(req Request, content io.Reader) error {
	b.t.Helper()
	if err := Send(b.in, req); err != nil {
		b.t.Fatal(err)
	}
	w := &ContentWriter{W: b.in}
	_, err := io.Copy(w, content)
	if err == nil {
		err = w.Close()
	}
	_, failed := b.answer()
	if failed != nil {
		_ = b.stop()
		b.start()
	} else if err != nil {
		b.t.Errorf("content of a request that succeeded could not be sent: %v", err)
	}
	return failed
}

func (b *box) write(name, content string) error {
	b.t.Helper()
	return b.send(Request{Op: OpWrite, Path: b.at(name)}, strings.NewReader(content))
}

func (b *box) read(path []byte, offset, length int64) (Info, string, error) {
	b.t.Helper()
	a, err := b.do(Request{Op: OpRead, Path: path, Offset: offset, Length: length})
	if err != nil {
		return Info{}, "", err
	}
	data, err := io.ReadAll(&ContentReader{R: b.out})
	return *a.Info, string(data), err
}

// has fails the test unless a file has that content.
func (b *box) has(name, content string) {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil || string(data) != content {
		b.t.Errorf("%s has %.100q, %v; want %q", name, data, err, content)
	}
}

// must fails the test if a preparation failed.
func (b *box) must(errs ...error) {
	b.t.Helper()
	if err := errors.Join(errs...); err != nil {
		b.t.Fatal(err)
	}
}

// TestRequests: each operation does what its name says, and failures have the error number.
func TestRequests(t *testing.T) {
	b := newBox(t)
	for _, c := range []struct {
		req  Request
		want error
	}{
		{Request{Op: OpMakeDir, Path: b.at("a/b")}, unix.ENOENT},
		{Request{Op: OpMakeDir, Path: b.at("a/b"), Parents: true}, nil},
		{Request{Op: OpMakeDir, Path: b.at("a/b"), Parents: true}, nil},
		{Request{Op: OpMakeDir, Path: b.at("a/b")}, unix.EEXIST},
		{Request{Op: OpMakeDir, Path: b.at("a/c")}, nil},
		{Request{Op: OpRename, Path: b.at("a/c"), To: b.at("a/d")}, nil},
		{Request{Op: OpRename, Path: b.at("a/c"), To: b.at("a/d")}, unix.ENOENT},
		{Request{Op: OpStat, Path: b.at("a/c")}, unix.ENOENT},
		{Request{Op: OpStat, Path: b.at("a/d")}, nil},
		{Request{Op: OpList, Path: b.at("a/c"), Most: 1}, unix.ENOENT},
		{Request{Op: OpPack, Path: b.at("a/c")}, unix.ENOENT},
		{Request{Op: OpRead, Path: b.at("a/c")}, unix.ENOENT},
		{Request{Op: OpRead, Path: b.at("a/d")}, unix.EISDIR},
		{Request{Op: OpRemove, Path: b.at("a/d")}, nil},
		{Request{Op: OpRemove, Path: b.at("a/d")}, unix.ENOENT},
		{Request{Op: OpRemove, Path: b.at("a/d/e")}, unix.ENOENT},
		{Request{Op: OpRemove, Path: b.at("a")}, unix.ENOTEMPTY},
		{Request{Op: OpRemove, Path: b.at("a/b/..")}, unix.EINVAL},
		{Request{Op: OpRemove, Path: []byte("/")}, unix.EINVAL},
		{Request{Op: OpRemove, Path: b.at("a/"), Recursive: true}, nil},
	} {
		if _, err := b.do(c.req); !errors.Is(err, c.want) {
			t.Errorf("%s %s: %v, want %v", c.req.Op, c.req.Path, err, c.want)
		}
	}
	if err := b.write("deep/er/file", "0123456789"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		offset, length int64
		want           string
	}{{0, 100, "0123456789"}, {3, 4, "3456"}, {10, 1, ""}, {100, 1, ""}, {0, 0, ""}} {
		if info, got, err := b.read(b.at("deep/er/file"), c.offset, c.length); got != c.want || err != nil || info.Size != 10 || info.Mode != 0o644 || info.Type != "file" || info.Inode == 0 {
			t.Errorf("%d bytes from %d on: %q of %+v, %v", c.length, c.offset, got, info, err)
		}
	}
	if _, err := b.do(Request{Op: OpRead, Path: b.at("deep/er/file"), Offset: 1 << 62, Length: 1}); err != nil {
		t.Error("an offset beyond the end:", err)
	}
	_, _ = io.Copy(io.Discard, &ContentReader{R: b.out})
	if err := b.stop(); err != nil {
		t.Errorf("without a further request: %v", err)
	}
}

// TestStreamsThatBreakOff: an incomplete request or content ends the worker.
func TestStreamsThatBreakOff(t *testing.T) {
	b := newBox(t)
	message := func(v any) []byte {
		var wire bytes.Buffer
		b.must(Send(&wire, v))
		return wire.Bytes()
	}
	write := message(Request{Op: OpWrite, Path: b.at("file")})
	for name, in := range map[string][]byte{
		"half a length":       {0, 0},
		"half a request":      write[:len(write)-1],
		"no content":          write,
		"half a chunk":        append(bytes.Clone(write), 0, 0, 0, 9, 'x'),
		"content without end": append(bytes.Clone(write), 0, 0, 0, 1, 'x'),
		"a chunk too long":    append(bytes.Clone(write), 0xff, 0, 0, 1, 'x'),
		"a request too long":  {0xff, 0xff, 0xff, 0xff},
		"no request":          append([]byte{0, 0, 0, 1}, 'x'),
		"unknown":             message(Request{Op: "chmod", Path: b.at("file")}),
	} {
		if err := serve(bytes.NewReader(in), io.Discard); err == nil {
			t.Errorf("%s: the worker continues", name)
		}
	}
	if err := serve(bytes.NewReader(message(Request{Op: OpStat, Path: b.at("")})), broken{}); !errors.Is(err, errBroken) {
		t.Errorf("answers that cannot be sent: %v", err)
	}
	b.must(os.WriteFile(b.dir+"/large", make([]byte, 3*MaxChunk), 0o644), os.Mkdir(b.dir+"/dir", 0o755), os.Rename(b.dir+"/large", b.dir+"/dir/large"))
	for _, req := range []Request{{Op: OpRead, Path: b.at("dir/large"), Length: 1 << 30}, {Op: OpPack, Path: b.at("dir")}} {
		if err := serve(bytes.NewReader(message(req)), &brokenAfter{n: MaxChunk}); !errors.Is(err, errBroken) {
			t.Errorf("%s whose content cannot be sent: %v", req.Op, err)
		}
	}
	if entries, err := os.ReadDir(b.dir); err != nil || len(entries) != 1 {
		t.Errorf("%v were left, %v", entries, err)
	}
}

var errBroken = errors.New("broken pipe")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }

// brokenAfter fails after n bytes.
type brokenAfter struct{ n int }

func (b *brokenAfter) Write(p []byte) (int, error) {
	if b.n -= len(p); b.n < 0 {
		return 0, errBroken
	}
	return len(p), nil
}
