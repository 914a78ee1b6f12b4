package fault

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/e2e/harness"
)

// smallDisk is a world whose state directory is a file system of its own, of that many MiB, with the gateway's log on it.
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
	log, err := os.OpenFile(filepath.Join(state, "gateway.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	w.Errout = log
	w.Up()
	return w
}

// fillDisk takes what is free on the state directory's file system; the returned function gives it back.
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

// large is a policy that needs more room in the store than it has left in its file, and opens extra.
func large() map[string]any {
	domains := []string{"api.example.com"}
	for i := range 4000 {
		domains = append(domains, fmt.Sprintf("filler-%d.example.com", i))
	}
	return map[string]any{"mode": "custom", "allowed_domains": domains, "allowed_cidrs": wide["allowed_cidrs"]}
}

// The disk with the state and the log is full: what cannot be stored is refused and changes nothing, what was in force
// stays, and all works again as soon as there is room.
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

	// A gateway that is killed now cannot necessarily start; the box is closed or as it was, and open to nothing new.
	w.Kill()
	_ = w.Start(t.Context())
	if r.Try("udp", netip.AddrPortFrom(extra[0], 4444)) == harness.Saw(nil) {
		t.Error("a restart on a full disk has opened something")
	}
	w.Kill()
	free()
	w.Up()
	w.SetPolicy(r.Box, large())
	if !agrees(r, "with room again") {
		t.Error("the policy is not in force")
	}
	w.SetPolicy(r.Box, narrow)
	w.MustDelete(w.Create(map[string]any{"name": "more", "network_policy": narrow}))
	s.holds()
}

// manyKeys are header rules too large for what the store has left.
func manyKeys() map[string]any {
	rules := map[string]any{}
	for i := range 60 {
		rules[fmt.Sprintf("filler-%d.example.com", i)] = map[string]string{"X-Key": strings.Repeat("k", 8000)}
	}
	return rules
}

// The state directory can only be read: the gateway says so and does not start; the boxes stay as they are.
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
	_ = w.Errout.Close() // nothing may be open for writing there
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
	w.Up()
	agrees(r, "writable again")
	s.holds()
}

// Whoever read the gateway's log has gone: writing to it fails, and the gateway goes on.
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
	w.Up()
	box := makeNarrow(w)
	for range 8 {
		w.MustSh(box, "curl -sS -k -o /dev/null https://api.example.com/; curl -s https://evil.example.net/ || true")
	}
	w.NothingReached("evil.example.net")
	agrees(w.Raid(box), "without a log")
}
