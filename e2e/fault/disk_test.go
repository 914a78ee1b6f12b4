package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// smallDisk returns a world whose state directory is a separate file system of size MiB, with the gateway's log on it.
func smallDisk(t *testing.T, size int) *harness.World {
	t.Helper()
	w := harness.NewCapturedStopped(t, nil)
	state := filepath.Join(w.Dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("boxgate-test", state, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0700", size)); err != nil {
		t.Fatal(err)
	}
	logOn(w, state)
	w.StartIfStopped()
	return w
}

// logOn makes the gateway log to a directory.
func logOn(w *harness.World, state string) {
	t := w.T
	t.Helper()
	log, err := os.OpenFile(filepath.Join(state, "gateway.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	w.Errout = log
}

// ownDisk returns a world whose state directory is a separate ext4 of size MiB, in a file.
func ownDisk(t *testing.T, size int) *harness.World {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	w := harness.NewCapturedStopped(t, nil)
	state := filepath.Join(w.Dir, "state")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, int64(size)<<20), os.Mkdir(state, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, state}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	w.StartIfStopped()
	return w
}

// A box without a disk limit does not fill the gateway's disk: however it writes, it is paused when only the reserve is
// left, until there is space again. Changes, and boxes that do not write, continue.
func TestAttackOnTheDiskByABoxWithoutLimits(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]string{"buffered": "", "direct": "oflag=direct"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := ownDisk(t, 320)
			bad, other := w.Create(map[string]any{}), w.Create(map[string]any{})
			w.MustSh(bad, `if fallocate -l 1M f; then echo space is taken without a write; exit 1; fi; python3 -c 'import os; os.posix_fallocate(os.open("g", os.O_RDWR | os.O_CREAT), 0, 1 << 20)'`)
			fillExcept(w, "first", 80<<20)
			// 20 MiB a second: on a busy machine a faster writer can use up the 28 MiB of the reserve before the
			// gateway's next check
			w.Background(bad, "i=0; while dd if=/dev/zero of=big bs=1M count=1 seek=$i conv=notrunc status=none "+how+"; do i=$((i+1)); sleep 0.05; done", io.Discard)
			status := func() string {
				var box struct{ Status string }
				if err := w.Client.Get(t.Context(), api.BoxPath(bad), &box); err != nil {
					t.Fatal(err)
				}
				return box.Status
			}
			w.Until("the box is paused", func() bool { return status() == "paused" })
			if left := freeBytes(w); left < 8<<20 {
				t.Errorf("%d MiB are left", left>>20)
			}
			w.SetPolicy(other, large())
			w.MustSh(other, "true")
			fillExcept(w, "second", 16<<20)                           // so that the box, which is resumed now and then, gets no more space
			w.Until("it stays paused, whoever uses it", func() bool { // without space it is only resumed now and then
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // a command waits while its box is paused
				defer cancel()
				err := w.Client.Do(ctx, "POST", api.BoxPath(bad, "exec"), map[string]any{"command": []string{"true"}}, nil)
				r, ok := errors.AsType[*api.ResponseError](err)
				return ok && r.Status == 507 && strings.Contains(r.Message, "launcher.reserve") && status() == "paused"
			})
			w.MustDelete(bad)
			w.Until("there is room", func() bool { return w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{}, nil) == nil })
		})
	}
}

// freeBytes returns how many bytes are free on the state directory's file system.
func freeBytes(w *harness.World) int64 {
	w.T.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Join(w.Dir, "state"), &st); err != nil {
		w.T.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// fillExcept fills the state directory's file system with a file of that name, except for the given number of bytes.
func fillExcept(w *harness.World, name string, bytes int64) {
	w.T.Helper()
	f, err := os.Create(filepath.Join(w.Dir, "state", name))
	if err != nil {
		w.T.Fatal(err)
	}
	defer f.Close()
	for size := freeBytes(w) - bytes; size > 0; size = freeBytes(w) - bytes {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		if err == nil {
			return
		} else if !errors.Is(err, unix.ENOSPC) { // a box may have written
			w.T.Fatal(err)
		}
		if err := f.Truncate(0); err != nil {
			w.T.Fatal(err)
		}
	}
}

// fillDisk fills the state directory's file system. free undoes it.
func fillDisk(w *harness.World) (free func()) {
	w.T.Helper()
	path := filepath.Join(w.Dir, "state", "filler")
	f, err := os.Create(path)
	if err != nil {
		w.T.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	if !strings.Contains(err.Error(), "no space") {
		w.T.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			w.T.Fatal(err)
		}
	}
}

// large returns a policy that needs more space than the store's file has left, and allows extra.
func large() map[string]any {
	domains := []string{"api.example.com"}
	for i := range 4000 {
		domains = append(domains, fmt.Sprintf("filler-%d.example.com", i))
	}
	return map[string]any{"mode": "custom", "allowed_domains": domains, "allowed_cidrs": wide["allowed_cidrs"]}
}

// The disk with the state and the log is full: changes that cannot be stored are refused and have no effect, the
// previous ones stay, and everything works again with free space.
func TestAttackWithAFullDisk(t *testing.T) {
	t.Parallel()
	w := smallDisk(t, 24)
	r := w.Raid(makeNarrow(w))
	s := besiege(w, harness.AttackerAt(101))
	free := fillDisk(w)
	before := w.Metric("boxgate_decisions_total")
	for _, c := range []struct {
		method, path string
		body         any
	}{
		{"PUT", api.BoxPath(r.Box, "config/network-policy"), large()},
		{"PUT", api.BoxPath(r.Box, "config/attach-headers"), manyKeys()},
		{"PUT", "/v2/box/settings/attach-headers", manyKeys()},
		{"POST", "/v2/box", map[string]any{"name": "more", "network_policy": large()}},
	} {
		err := w.Client.Do(t.Context(), c.method, c.path, c.body, nil)
		if err == nil {
			t.Fatalf("%s %s succeeded on a full disk", c.method, c.path)
		}
		if c.method == "PUT" {
			harness.Contains(t, err.Error(), "the disk of state_dir is full")
		}
		if agrees(r, c.method+" "+c.path) {
			t.Errorf("%s %s opened something", c.method, c.path)
		}
	}
	w.MustSh(r.Box, "curl -sS -k -o /dev/null https://api.example.com/")
	w.Until("decisions are counted although they cannot be written", func() bool { return w.Metric("boxgate_decisions_total") > before })

	// A gateway killed now may be unable to start. The box is closed or unchanged, and gains no access.
	w.Kill()
	_ = w.Start(t.Context())
	if r.Try("udp", netip.AddrPortFrom(extra[0], 4444)) == harness.Saw(nil) {
		t.Error("a restart on a full disk has opened something")
	}
	w.Kill()
	free()
	w.StartIfStopped()
	w.SetPolicy(r.Box, large())
	if !agrees(r, "with room again") {
		t.Error("the policy is not in force")
	}
	w.SetPolicy(r.Box, narrow)
	w.MustDelete(w.Create(map[string]any{"name": "more", "network_policy": narrow}))
	s.assertHolds()
}

// manyKeys returns header rules that are too large for the space left for the store.
func manyKeys() map[string]any {
	rules := map[string]any{}
	for i := range 60 {
		rules[fmt.Sprintf("filler-%d.example.com", i)] = map[string]string{"X-Key": strings.Repeat("k", 8000)}
	}
	return rules
}

// The state directory is read-only: the gateway reports it and does not start. The boxes do not change.
func TestAttackWithAReadOnlyDisk(t *testing.T) {
	t.Parallel()
	w := smallDisk(t, 24)
	r := w.Raid(makeNarrow(w))
	s := besiege(w, harness.AttackerAt(101))
	w.Kill()
	state := filepath.Join(w.Dir, "state")
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", state, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Errout.Close() // no file may be open for writing there
	w.Errout = nil
	remount(unix.MS_RDONLY)
	err := w.Start(t.Context())
	if err == nil {
		t.Fatal("the gateway started")
	}
	harness.Contains(t, err.Error(), "state_dir: the file system of", "is mounted read-only: mount it writable")
	w.Kill()
	if got := r.Try("udp", netip.AddrPortFrom(extra[0], 4444)); got == harness.Saw(nil) {
		t.Error("the box is open")
	}
	remount(0)
	w.StartIfStopped()
	agrees(r, "writable again")
	s.assertHolds()
}

// The reader of the gateway's log has exited: writing to the log fails, and the gateway continues.
func TestAttackWithoutAReaderOfTheLog(t *testing.T) {
	t.Parallel()
	w := harness.NewCapturedStopped(t, nil)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	w.Errout = write
	go func() {
		_, _ = io.CopyN(io.Discard, read, 2000)
		read.Close()
	}()
	w.StartIfStopped()
	box := makeNarrow(w)
	for range 8 {
		w.MustSh(box, "curl -sS -k -o /dev/null https://api.example.com/; curl -s https://evil.example.net/ || true")
	}
	w.NothingReached("evil.example.net")
	agrees(w.Raid(box), "without a log")
}

// Snapshots, new boxes and images stop before the disk of state_dir is full: a reserve is kept for the store, even from
// the operator. The files of aborted work are removed, and with free space everything works again.
func TestAttackOnTheReserveOfTheDisk(t *testing.T) {
	t.Parallel()
	const size = 96
	w := smallDisk(t, size)
	state := filepath.Join(w.Dir, "state")
	box := w.Create(map[string]any{})
	w.MustSh(box, "head -c 20M /dev/urandom >blob")
	refused := func(err error) bool {
		r, ok := errors.AsType[*api.ResponseError](err)
		return ok && r.Status == 507 && strings.Contains(r.Message, "launcher.reserve")
	}
	var ids []string
	for range size / 20 {
		var s struct{ ID, Status, Error string }
		err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "snapshots"), map[string]any{}, &s)
		switch {
		case err == nil && s.Status == "ready", err == nil && strings.Contains(s.Error, "launcher.reserve"):
			ids = append(ids, s.ID)
		case !refused(err):
			t.Fatalf("%v %+v", err, s)
		}
	}
	free := func() int64 {
		var st unix.Statfs_t
		if err := unix.Statfs(state, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bavail) * st.Bsize
	}
	const kept = size << 20 / 10
	w.Until("what was given up is removed", func() bool { return free() > kept-1<<20 })
	filler := filepath.Join(state, "filler")
	if err := os.WriteFile(filler, make([]byte, max(free()-kept+1<<20, 1)), 0o600); err != nil { // like another program
		t.Fatal(err)
	}
	if err := w.Client.Do(t.Context(), "POST", "/v2/box", map[string]any{}, nil); !refused(err) {
		t.Errorf("a new box: %v", err)
	}
	if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "snapshots"), map[string]any{}, nil); !refused(err) {
		t.Errorf("a snapshot: %v", err)
	}
	w.SetPolicy(box, large()) // the store has space
	if err := errors.Join(w.Client.Do(t.Context(), "DELETE", "/v2/box/snapshots", map[string]any{"ids": ids}, nil), os.Remove(filler)); err != nil {
		t.Fatal(err)
	}
	w.Until("there is room again", func() bool {
		return w.Client.Do(t.Context(), "POST", api.BoxPath(box, "snapshots"), map[string]any{}, nil) == nil
	})
	w.MustDelete(w.Create(map[string]any{}))
}
