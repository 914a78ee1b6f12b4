package disk

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/internal/nightly"
)

// fill writes to a file until an error, and returns how much was written, and the error.
func fill(t *testing.T, path string) (n int64, err error) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := bytes.Repeat([]byte("x"), 1<<16)
	for err == nil && n < 1<<30 {
		var m int
		m, err = f.Write(block)
		n += int64(m)
	}
	return n, errors.Join(err, f.Sync())
}

func TestVolumeIsBounded(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	v := Volume{File: filepath.Join(dir, "volume"), At: filepath.Join(dir, "at")}
	if err := v.Make(t.Context(), Limit{Bytes: 64 << 20, Files: 1000}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Unmount(); err != nil {
			t.Error(err)
		}
	})
	var st unix.Stat_t
	if err := unix.Stat(v.File, &st); err != nil || st.Blocks*512 > 32<<20 {
		t.Errorf("an empty volume takes %d bytes of the disk: %v", st.Blocks*512, err)
	}
	if n, err := fill(t, filepath.Join(v.At, "big")); !errors.Is(err, unix.ENOSPC) || n > 64<<20 || n < 30<<20 {
		t.Errorf("%d bytes: %v", n, err)
	}
	if err := os.Remove(filepath.Join(v.At, "big")); err != nil {
		t.Fatal(err)
	}
	files := 0
	for ; files < 3000; files++ {
		if err := os.WriteFile(filepath.Join(v.At, strconv.Itoa(files)), nil, 0o600); err != nil {
			break
		}
	}
	if files > 1100 || files < 500 {
		t.Errorf("%d files", files)
	}
	if err := errors.Join(v.Unmount(), v.Unmount(), v.Mount(), v.Mount()); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(v.At); err != nil || len(entries) < files {
		t.Errorf("mounted again it has %d files: %v", len(entries), err)
	}
}

// A volume that another mount namespace still has mounted is one file system with what is mounted anew: two would
// overwrite each other.
func TestAVolumeIsOneFileSystem(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	v := Volume{File: filepath.Join(dir, "volume"), At: filepath.Join(dir, "at")}
	t.Cleanup(func() { _ = v.Unmount() })
	if err := v.Make(t.Context(), Limit{Bytes: 65 << 20, Files: 1000}); err != nil {
		t.Fatal(err)
	}
	elsewhere := exec.Command("sh", "-c", `read name && echo of the box > "$0/$name" && cat "$0/of-the-host"`, v.At)
	elsewhere.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	in, err := elsewhere.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	elsewhere.Stdout = &out
	if err := elsewhere.Start(); err != nil {
		t.Fatal(err)
	}
	err = errors.Join(v.Unmount(), v.Mount(), os.WriteFile(filepath.Join(v.At, "of-the-host"), []byte("of the host"), 0o600))
	_, werr := in.Write([]byte("of-the-box\n"))
	if err := errors.Join(err, werr, elsewhere.Wait()); err != nil || out.String() != "of the host" {
		t.Errorf("%q: %v", out.String(), err)
	}
	if err := errors.Join(v.Unmount(), v.Mount()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"of-the-host", "of-the-box"} {
		if b, err := os.ReadFile(filepath.Join(v.At, name)); err != nil || !strings.HasPrefix(string(b), strings.ReplaceAll(name, "-", " ")) {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// Loop devices of files with other names, which belong to other programs, are not opened: their file systems may never answer.
func TestOnlyDevicesOfTheVolumeAreExamined(t *testing.T) {
	t.Parallel()
	for backing, want := range map[string]bool{
		"/state/boxes/b1/disk\n": true, "/elsewhere/b1/disk\n": true, "/state/boxes/b2/disk\n": false, "/images/b1.img\n": false, "\n": false,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "backing_file"), []byte(backing), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := hasNameOf(dir, "/state/boxes/b1/disk"); got != want {
			t.Errorf("%q: %v", backing, got)
		}
	}
	if hasNameOf(t.TempDir(), "/state/boxes/b1/disk") {
		t.Error("a device without a file may have the volume's")
	}
}

// Volumes with the smallest limits that the configuration accepts (config.Disk) can be made.
func TestTheLeastVolumesCanBeMade(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	for mebibytes, files := range map[int64]int64{65: 1000, 446: 1_000_000, 711: 1_700_000, 38_211: 100_000_000} {
		dir := t.TempDir()
		v := Volume{File: filepath.Join(dir, "volume"), At: filepath.Join(dir, "at")}
		t.Cleanup(func() { _ = v.Unmount() })
		if err := v.Make(t.Context(), Limit{Bytes: mebibytes << 20, Files: files}); err != nil {
			t.Errorf("%d MiB for %d files: %v", mebibytes, files, err)
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(v.At, &st); err != nil || int64(st.Bavail)*st.Bsize < 32<<20 {
			t.Errorf("%d MiB for %d files: %d bytes are left: %v", mebibytes, files, int64(st.Bavail)*st.Bsize, err)
		}
	}
}

// projects returns a directory of a file system with project quotas; it skips the test if the kernel has none.
func projects(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 64<<20), os.Mkdir(at, 0o700)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(Formatter, "-q", "-F", "-O", "project,quota", "-E", "quotatype=prjquota", file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	device, err := attach(file)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if err := unix.Mount(device.Name(), at, "ext4", 0, "prjquota"); err != nil {
		t.Logf("this kernel has no project quotas (%v): only that they are missed is tested", err)
		return ""
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	return at
}

func TestProjectsAreBounded(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	if err := HasProjects(t.TempDir()); err != nil && !errors.Is(err, ErrNoProjects) {
		t.Error(err)
	}
	if err := HasProjects("/proc"); !errors.Is(err, ErrNoProjects) {
		t.Errorf("/proc: %v", err)
	}
	at := projects(t)
	if at == "" {
		return
	}
	own := filepath.Join(at, "own")
	p, err := NewProject(at, Limit{Bytes: 8 << 20, Files: 20})
	if err := errors.Join(err, HasProjects(at), os.Mkdir(own, 0o700), p.Own(own)); err != nil {
		t.Fatal(err)
	}
	// Root may exceed quotas unless it drops that capability, as overlayfs does for its writes: this test only checks the
	// counting.
	if err := os.WriteFile(filepath.Join(own, "f"), bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var q quota
	if err := quotactl(f, getQuota, p, &q); err != nil || q.Space < 1<<20 || q.Inodes != 2 || q.BlockHard != 8<<10 || q.InodeHard != 20 {
		t.Errorf("%+v, %v", q, err)
	}
	if err := p.Free(at); err != nil {
		t.Error(err)
	}
}
