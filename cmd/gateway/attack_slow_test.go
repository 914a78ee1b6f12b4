package main

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

	"boxgate/internal/lab"
)

// manyFiles is how many files the boxes of these tests leave: enough that their removal takes seconds.
const manyFiles = 60_000

// fillWithFiles makes very many files in a box.
func (w *world) fillWithFiles(box string) {
	w.t.Helper()
	w.mustSh(box, `mkdir very-many && cd very-many && exec python3 -c '
import os
for i in range(`+strconv.Itoa(manyFiles)+`):
    if i % 1000 == 0:
        os.mkdir(f"{i}")
        d = os.open(f"{i}", os.O_PATH)
    os.close(os.open("f%d" % i, os.O_CREAT | os.O_WRONLY, dir_fd=d))'`)
}

// filesLeft reports whether some of them are still on disk.
func (w *world) filesLeft() bool {
	found, err := filepath.Glob(filepath.Join(w.Dir, "state", "*", "*", "upper", "workspace", "home", "very-many"))
	return err == nil && len(found) > 0
}

// awaitRemoval waits until all files of deleted boxes are removed, which gives way to everything else.
func (w *world) awaitRemoval() {
	w.t.Helper()
	for began := time.Now(); w.filesLeft(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > 2*time.Minute {
			w.t.Fatal("the files of a deleted box are not removed")
		}
	}
}

// A box of very many files is forgotten at once: nobody waits until they are removed, neither who deletes it, nor who
// changes something of all boxes, nor who wants its name, nor a gateway that starts after it was killed over it.
func TestAttackBoxOfVeryManyFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.create(map[string]any{})
	full := w.create(map[string]any{"name": "full"})
	w.fillWithFiles(full)

	w.mustDelete(full)
	w.globalHeaders("deleted")
	if !w.filesLeft() {
		t.Error("somebody waited until the files of a deleted box were removed")
	}
	again := w.create(map[string]any{"name": "full"})
	if out, _ := w.gatewayCommand("box", "list", "--json"); strings.Contains(out, full) {
		t.Errorf("the deleted box is still known: %s", out)
	}
	w.awaitRemoval()

	w.fillWithFiles(again)
	w.mustDelete(again)
	w.Kill()
	if !w.filesLeft() {
		t.Error("deleting a box takes until its files are removed")
	}
	w.up()
	if !w.filesLeft() {
		t.Error("the gateway removed files before it served")
	}
	w.awaitRemoval()
}

// Files that cannot be removed take no name and hold nobody up. The metrics tell, and they are tried again.
func TestFilesOfADeletedBoxThatStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	box := w.create(map[string]any{"name": "kept"})
	home := filepath.Join(w.Dir, "state", "boxes", box, "upper", "workspace", "home")
	w.mustSh(box, "mkdir very-many")
	release := w.keepDirectory(filepath.Join(home, "very-many"))
	w.mustDelete(box)
	other := w.create(map[string]any{"name": "kept"})
	w.mustSh(other, "true")
	w.until("the metrics tell of it", func() bool {
		return strings.Contains(string(w.metrics()), "\nboxgate_deleted_boxes_with_failing_files 1\n")
	})
	release()
	w.mustDelete(other) // wakes who removes files
	w.awaitRemoval()
	w.until("the metrics tell that all is well", func() bool {
		text := string(w.metrics())
		return strings.Contains(text, "\nboxgate_deleted_boxes_with_failing_files 0\n") && strings.Contains(text, "\nboxgate_deleted_boxes_with_files 0\n")
	})
}

// A box that is slow to make, or to delete, holds up whoever makes or deletes it, and nobody else: a change of all boxes
// is in force meanwhile.
func TestAttackSlowBoxHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := stoppedWorld(t, lab.Options{})
	w.Env = append(w.Env, faultsFile+"="+w.faultsPath())
	w.up()
	w.create(map[string]any{})
	slow := w.create(map[string]any{})
	for _, c := range []struct {
		step    string
		request func(context.Context) error
	}{
		{"launch: root built", func(ctx context.Context) error {
			return w.Client.Do(ctx, "POST", "/v2/box", map[string]any{"name": "hangs"}, nil)
		}},
		{"remove: processes ended", func(ctx context.Context) error {
			return w.Client.Do(ctx, "DELETE", boxPath(slow), nil, nil)
		}},
	} {
		w.arm(faultHang, c.step)
		ctx, hangUp := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.request(ctx) }()
		w.until(c.step, func() bool {
			_, err := os.Stat(w.faultsPath())
			return os.IsNotExist(err)
		})
		w.globalHeaders(c.step)
		select {
		case err := <-ended:
			t.Errorf("%s: it did not hang: %v", c.step, err)
		default:
		}
		hangUp()
		w.until("what hung was taken back", func() bool {
			var boxes []struct{ Name string }
			return w.Client.Get(t.Context(), "/v2/box", &boxes) == nil &&
				!slices.ContainsFunc(boxes, func(b struct{ Name string }) bool { return b.Name == "hangs" })
		})
	}
	w.Kill() // a deletion that has begun is carried through, for half a minute
}

// A box can be deleted while it is still being made. Nothing of it is left, and what gets its addresses next works.
func TestDeletedWhileItIsMade(t *testing.T) {
	t.Parallel()
	w := stoppedWorld(t, lab.Options{})
	w.Env = append(w.Env, faultsFile+"="+w.faultsPath())
	w.up()
	for _, step := range []string{"launch: root built", "launch: first process started"} {
		w.arm(faultHang, step)
		ctx, hangUp := context.WithCancel(t.Context())
		made, deleted := make(chan error, 1), make(chan error, 1)
		go func() { made <- w.Client.Do(ctx, "POST", "/v2/box", map[string]any{"name": "short-lived"}, nil) }()
		w.until(step, func() bool {
			_, err := os.Stat(w.faultsPath())
			return os.IsNotExist(err)
		})
		go func() { deleted <- w.Client.Do(t.Context(), "DELETE", boxPath("short-lived"), nil, nil) }()
		w.until("the deletion has begun", func() bool {
			links, err := w.Net.Gateway().Run(t.Context(), "ip", "-o", "link")
			return err == nil && !strings.Contains(links, "alias boxgate box")
		})
		hangUp()
		if err := <-made; err == nil {
			t.Errorf("%s: the box was made", step)
		}
		if err := <-deleted; err != nil {
			t.Errorf("%s: %v", step, err)
		}
		w.until(step+": the box is gone", func() bool {
			var boxes []any
			return w.Client.Get(t.Context(), "/v2/box", &boxes) == nil && len(boxes) == 0
		})
		next := w.create(map[string]any{"name": "short-lived"})
		w.mustSh(next, "curl -sS --max-time 20 http://plain.example.com/seen")
		w.mustDelete(next)
		w.nothingLeft(step)
	}
}

// globalHeaders changes the header rules of all boxes.
func (w *world) globalHeaders(when string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	rules := map[string]any{"api.example.com": map[string]string{"X-A": when}}
	if err := w.Client.Do(ctx, "PUT", "/v2/box/settings/attach-headers", rules, nil); err != nil {
		w.t.Errorf("%s: header rules of all boxes: %v", when, err)
	}
}

// A box that takes its link down, or away, over and over holds nobody up: other boxes keep their network, and changes of
// theirs are in force as soon as ever.
func TestAttackBoxThatFlapsItsLink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	quiet := w.create(map[string]any{"network_policy": custom("plain.example.com")})
	f := newForeignBox(t)
	if err := w.Client.Do(t.Context(), "POST", "/v2/box/attach", map[string]any{"pid": f.pid}, nil); err != nil {
		t.Fatal(err)
	}
	changes := func() time.Duration {
		began := time.Now()
		for i := range 20 {
			w.setPolicy(quiet, custom("plain.example.com", "n"+strconv.Itoa(i)+".example.com"))
		}
		return time.Since(began)
	}
	calm := changes()
	f.keepDoing(`ip link set eth0 down; ip link set eth0 up; ip link set eth0 name other; ip link del other`)
	w.until("it flaps", func() bool { return strings.Contains(w.LogText(), "have been restored") })
	t.Logf("20 changes: %v in calm, %v with the flapping box", calm, changes())
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		changes()
	}
	if n := strings.Count(w.LogText(), "have been restored"); n > 30 {
		t.Errorf("a flapping box had its link repaired %d times within moments", n)
	}
	w.setPolicy(quiet, custom("plain.example.com"))
	if out, code := w.sh(quiet, "curl -sS --max-time 20 http://plain.example.com/seen"); code != 0 {
		t.Errorf("the other box: %d %s", code, out)
	}
	w.nft("flush ruleset")
	w.until("the other box has its network back", func() bool {
		_, code := w.sh(quiet, "curl -sS --max-time 5 http://plain.example.com/seen")
		return code == 0
	})
	w.globalHeaders("flapping")
}

// keepDoing does something in the sandbox over and over, as its root, until the test ends.
func (f *foreignBox) keepDoing(line string) {
	f.t.Helper()
	cmd := exec.Command("nsenter", "-t", strconv.Itoa(f.pid), "-n", "sh", "-c", "while :; do "+line+"; done 2>/dev/null")
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// keepDirectory makes a directory one that nobody can remove, until the returned function is called.
func (w *world) keepDirectory(dir string) (release func()) {
	w.t.Helper()
	const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	f, err := os.Open(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	set := func(flags int) error { return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags) }
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err = errors.Join(err, set(flags|immutable)); err != nil {
		w.t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := errors.Join(set(flags), f.Close()); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(release)
	return release
}
