package attack

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// manyFiles is the number of files in the boxes of these tests. Their removal must take longer than a change of all
// boxes and, in the nightly tier, than a start.
var manyFiles = nightly.Size(30_000, 60_000)

// fillWithFiles creates very many files in a box.
func fillWithFiles(w *harness.World, box string) {
	w.T.Helper()
	w.MustSh(box, `mkdir very-many && cd very-many && exec python3 -c '
import os
for i in range(`+strconv.Itoa(manyFiles)+`):
    if i % 1000 == 0:
        os.mkdir(f"{i}")
        d = os.open(f"{i}", os.O_PATH)
    os.close(os.open("f%d" % i, os.O_CREAT | os.O_WRONLY, dir_fd=d))'`)
}

// filesLeft reports whether some of the files are still on disk.
func filesLeft(w *harness.World) bool {
	found, err := filepath.Glob(filepath.Join(w.Dir, "state", "*", "*", "upper", "workspace", "home", "very-many"))
	return err == nil && len(found) > 0
}

// awaitRemoval waits until all files of deleted boxes are removed. The removal yields to all other work.
func awaitRemoval(w *harness.World) {
	w.T.Helper()
	for began := time.Now(); filesLeft(w); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			w.T.Fatal("the files of a deleted box are not removed")
		}
	}
}

// A box with very many files is deleted immediately. The removal of its files delays neither the deletion, nor changes
// of all boxes, nor a new box of the same name, nor the start of a gateway that was killed during the removal.
func TestAttackBoxOfVeryManyFiles(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	w.Create(map[string]any{})
	full := w.Create(map[string]any{"name": "full"})
	fillWithFiles(w, full)

	w.MustDelete(full)
	globalHeaders(w, "deleted")
	if !filesLeft(w) {
		t.Error("somebody waited until the files of a deleted box were removed")
	}
	again := w.Create(map[string]any{"name": "full"})
	if out, _ := w.GatewayCommand("box", "list", "--json"); strings.Contains(out, full) {
		t.Errorf("the deleted box is still known: %s", out)
	}
	awaitRemoval(w)
	if !nightly.Enabled() {
		return
	}

	fillWithFiles(w, again)
	w.MustDelete(again)
	w.Kill()
	if !filesLeft(w) {
		t.Error("deleting a box takes until its files are removed")
	}
	w.StartIfStopped()
	if !filesLeft(w) {
		t.Error("the gateway removed files before it served")
	}
	awaitRemoval(w)
}

// Files that cannot be removed neither block their name nor delay other work. The metrics report them, and the removal
// is retried.
func TestFilesOfADeletedBoxThatStay(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	box := w.Create(map[string]any{"name": "kept"})
	home := filepath.Join(w.Dir, "state", "boxes", box, "upper", "workspace", "home")
	w.MustSh(box, "mkdir very-many")
	release := keepDirectory(w, filepath.Join(home, "very-many"))
	w.MustDelete(box)
	other := w.Create(map[string]any{"name": "kept"})
	w.MustSh(other, "true")
	w.Until("the metrics tell of it", func() bool {
		return strings.Contains(string(w.Metrics()), "\nboxgate_deleted_boxes_with_failing_files 1\n")
	})
	release()
	w.MustDelete(other) // wakes the removal of files
	awaitRemoval(w)
	w.Until("the metrics tell that all is well", func() bool {
		text := string(w.Metrics())
		return strings.Contains(text, "\nboxgate_deleted_boxes_with_failing_files 0\n") && strings.Contains(text, "\nboxgate_deleted_boxes_with_files 0\n")
	})
}

// A box that is slow to create or delete delays only the client that creates or deletes it: a change of all boxes is
// applied at the same time.
func TestAttackSlowBoxHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = append(w.Env, harness.FaultsFile+"="+w.FaultsPath())
	w.StartIfStopped()
	w.Create(map[string]any{})
	slow := w.Create(map[string]any{})
	for _, c := range []struct {
		step    string
		request func(context.Context) error
	}{
		{"launch: root built", func(ctx context.Context) error {
			return w.Client.Do(ctx, "POST", "/v2/box", map[string]any{"name": "hangs"}, nil)
		}},
		{"remove: processes ended", func(ctx context.Context) error {
			return w.Client.Do(ctx, "DELETE", api.BoxPath(slow), nil, nil)
		}},
	} {
		w.Arm(harness.FaultHang, c.step)
		ctx, hangUp := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.request(ctx) }()
		w.Until(c.step, func() bool {
			_, err := os.Stat(w.FaultsPath())
			return os.IsNotExist(err)
		})
		globalHeaders(w, c.step)
		select {
		case err := <-ended:
			t.Errorf("%s: it did not hang: %v", c.step, err)
		default:
		}
		hangUp()
		w.Until("what hung was taken back", func() bool {
			var boxes []struct{ Name string }
			return w.Client.Get(t.Context(), "/v2/box", &boxes) == nil &&
				!slices.ContainsFunc(boxes, func(b struct{ Name string }) bool { return b.Name == "hangs" })
		})
	}
	w.Kill() // a deletion in progress is completed, for up to half a minute
}

// globalHeaders changes the header rules of all boxes.
func globalHeaders(w *harness.World, when string) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), 20*time.Second)
	defer cancel()
	rules := map[string]any{"api.example.com": map[string]string{"X-A": when}}
	if err := w.Client.Do(ctx, "PUT", "/v2/box/settings/attach-headers", rules, nil); err != nil {
		w.T.Errorf("%s: header rules of all boxes: %v", when, err)
	}
}

// A box that takes its link down, or removes it, over and over affects only itself: other boxes keep their network, and
// their changes are applied as fast as before.
func TestAttackBoxThatFlapsItsLink(t *testing.T) {
	t.Parallel()
	w := harness.Shared(t)
	quiet := w.Create(map[string]any{"network_policy": harness.Custom("plain.example.com")})
	f := harness.NewForeignBox(t)
	if err := w.Client.Do(t.Context(), "POST", "/v2/box/attach", map[string]any{"pid": f.PID}, nil); err != nil {
		t.Fatal(err)
	}
	changes := func() time.Duration {
		began := time.Now()
		for i := range 20 {
			w.SetPolicy(quiet, harness.Custom("plain.example.com", "n"+strconv.Itoa(i)+".example.com"))
		}
		return time.Since(began)
	}
	calm := changes()
	keepDoing(f, `ip link set eth0 down; ip link set eth0 up; ip link set eth0 name other; ip link del other`)
	w.Until("it flaps", func() bool { return strings.Contains(w.LogText(), "have been restored") })
	t.Logf("20 changes: %v in calm, %v with the flapping box", calm, changes())
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		changes()
	}
	if n := strings.Count(w.LogText(), "have been restored"); n > 30 {
		t.Errorf("a flapping box had its link repaired %d times within moments", n)
	}
	w.SetPolicy(quiet, harness.Custom("plain.example.com"))
	if out, code := w.Sh(quiet, "curl -sS --max-time 60 http://plain.example.com/seen"); code != 0 {
		t.Errorf("the other box: %d %s", code, out)
	}
	w.NFT("flush ruleset")
	w.Until("the other box has its network back", func() bool {
		_, code := w.Sh(quiet, "curl -sS --max-time 5 http://plain.example.com/seen")
		return code == 0
	})
	globalHeaders(w, "flapping")
}

// keepDoing does something in the sandbox over and over, as its root, until the test ends.
func keepDoing(f *harness.ForeignBox, line string) {
	f.T.Helper()
	cmd := exec.Command("nsenter", "-t", strconv.Itoa(f.PID), "-n", "sh", "-c", "while :; do "+line+"; done 2>/dev/null")
	if err := cmd.Start(); err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// keepDirectory makes a directory immutable until the returned function is called.
func keepDirectory(w *harness.World, dir string) (release func()) {
	w.T.Helper()
	const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	f, err := os.Open(dir)
	if err != nil {
		w.T.Fatal(err)
	}
	set := func(flags int) error { return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags) }
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err = errors.Join(err, set(flags|immutable)); err != nil {
		w.T.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := errors.Join(set(flags), f.Close()); err != nil {
			w.T.Error(err)
		}
	})
	w.T.Cleanup(release)
	return release
}
