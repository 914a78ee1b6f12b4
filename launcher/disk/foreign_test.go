package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// fuseFile serves the only file of a FUSE file system, 1 MiB of zeros, until the descriptor of the device is closed. See linux/fuse.h.
func fuseFile(device int) {
	const lookup, forget, getAttributes, open, read, start = 1, 2, 3, 14, 15, 26
	const size = 1 << 20
	attributes := func(node uint64) []byte {
		mode, n := uint32(unix.S_IFREG|0o600), uint64(size)
		if node == 1 {
			mode, n = unix.S_IFDIR|0o755, 0
		}
		out := make([]byte, 88)
		binary.NativeEndian.PutUint64(out, node)
		binary.NativeEndian.PutUint64(out[8:], n)
		binary.NativeEndian.PutUint32(out[60:], mode)
		binary.NativeEndian.PutUint32(out[64:], 1) // links
		return out
	}
	in := make([]byte, 2<<20)
	for {
		n, err := unix.Read(device, in)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		var out []byte
		failure := int32(0)
		switch binary.NativeEndian.Uint32(in[4:]) {
		case start:
			out = make([]byte, 64)
			binary.NativeEndian.PutUint32(out, 7)
			binary.NativeEndian.PutUint32(out[4:], 31)
			binary.NativeEndian.PutUint32(out[20:], 1<<17) // largest write
		case lookup:
			out = make([]byte, 40, 128)
			binary.NativeEndian.PutUint64(out, 2)
			out = append(out, attributes(2)...)
		case getAttributes:
			out = append(make([]byte, 16), attributes(binary.NativeEndian.Uint64(in[16:]))...)
		case open:
			out = make([]byte, 16)
		case read:
			out = make([]byte, min(binary.NativeEndian.Uint32(in[56:]), size))
		case forget:
			continue
		default:
			failure = -int32(unix.ENOSYS)
		}
		head := binary.NativeEndian.AppendUint32(nil, uint32(16+len(out)))
		head = binary.NativeEndian.AppendUint32(head, uint32(failure))
		head = append(head, in[8:16]...)
		_, _ = unix.Write(device, append(head, out...))
	}
}

// TestALoopDeviceOfOthersDoesNotMatter: a loop device of something else on the host, whose file cannot be examined because its file
// system has gone, keeps no volume from being mounted.
func TestALoopDeviceOfOthersDoesNotMatter(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("the kernel has no FUSE")
	}
	at := filepath.Join(dir, "fuse")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("fuse", at, "fuse", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_FORCE|unix.MNT_DETACH) })
	served := make(chan struct{})
	go func() { defer close(served); fuseFile(fuse) }()
	other, err := attach(filepath.Join(at, "theirs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	if err := unix.Unmount(at, unix.MNT_FORCE|unix.MNT_DETACH); err != nil { // ends the connection
		t.Fatal(err)
	}
	<-served
	unix.Close(fuse)
	if info, err := unix.IoctlLoopGetStatus64(int(other.Fd())); err == nil {
		t.Fatalf("the file can still be examined: %+v", info)
	}
	v := Volume{File: filepath.Join(dir, "volume"), At: filepath.Join(dir, "at")}
	t.Cleanup(func() { _ = v.Unmount() })
	if err := v.Make(t.Context(), Limit{Bytes: 65 << 20, Files: 1000}); err != nil {
		t.Error(err)
	}
}
