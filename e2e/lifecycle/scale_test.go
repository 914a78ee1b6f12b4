package lifecycle

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
)

// scale is an environment variable: cycles of [TestBoxesComeAndGoWithoutATrace], and boxes, launched and attached, of
// [TestManyBoxes]: "1000 50 500" for `make scale`.
const scale = "BOXGATE_TEST_SCALE"

// scaleOf returns the three numbers.
func scaleOf(t *testing.T) (cycles, launched, attached int) {
	t.Helper()
	cycles, launched, attached = 40, 6, nightly.Size(20, 40)
	if text := os.Getenv(scale); text != "" {
		if n, err := fmt.Sscan(text, &cycles, &launched, &attached); n != 3 {
			t.Fatalf("%s=%q: %v", scale, text, err)
		}
	}
	return cycles, launched, attached
}

// traces counts the host's resources in use by a gateway and its boxes.
func traces(w *harness.World) map[string]int {
	w.T.Helper()
	found := map[string]int{
		"descriptors": entries(fmt.Sprintf("/proc/%d/fd", w.Process.Process.Pid)),
		"goroutines":  int(w.Metric("go_goroutines")),
		"files":       below(filepath.Join(w.Dir, "state", "boxes")) + below(filepath.Join(w.Dir, "state", "trash")) + below(lab.RunDir(w.Dir)),
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		w.T.Fatal(err)
	}
	found["mounts"] = strings.Count(string(mounts), filepath.Base(w.Dir))
	for what, line := range map[string]string{
		"rules and elements": "nft list ruleset | tr , '\\n' | grep -v -c expires", "links": "ip -o link | wc -l", "routing rules": "ip rule | wc -l; ip -6 rule | wc -l",
		"routes": "(ip route show table all; ip -6 route show table all) | wc -l", "neighbours": "(ip neigh show nud permanent; ip -6 neigh show nud permanent) | wc -l",
	} {
		out, err := w.Net.Gateway().Run(w.T.Context(), "sh", "-c", line)
		if err != nil {
			w.T.Fatal(err, out)
		}
		for field := range strings.FieldsSeq(out) {
			n, _ := strconv.Atoi(field)
			found[what] += n
		}
	}
	return found
}

func entries(dir string) int {
	list, _ := os.ReadDir(dir)
	return len(list)
}

// below counts the files in a directory and below it.
func below(dir string) (n int) {
	_ = filepath.WalkDir(dir, func(string, fs.DirEntry, error) error { n++; return nil })
	return n
}

// groupsOf returns the control groups of a box.
func groupsOf(boxes []string) (found []string) {
	for _, box := range boxes {
		for _, pattern := range []string{"/sys/fs/cgroup/*" + box + "*", "/sys/fs/cgroup/*/*" + box + "*"} {
			groups, _ := filepath.Glob(pattern)
			found = append(found, groups...)
		}
	}
	return found
}

// Boxes that are created, used, paused, attached and deleted leave no traces in the gateway, the kernel, or on disk.
func TestBoxesComeAndGoWithoutATrace(t *testing.T) {
	if os.Getenv(scale) == "" {
		nightly.Only(t) // for many boxes; the traces of one box are tested with every fault
	}
	t.Parallel()
	cycles, _, _ := scaleOf(t)
	w := harness.Shared(t)
	f := harness.NewForeignBox(t)
	var made []string
	cycle := func(n int) {
		t.Helper()
		box := w.Create(map[string]any{"network_policy": harness.Custom("plain.example.com", fmt.Sprintf("host%d.example.com", n))})
		made = append(made, box)
		if out, code := w.Sh(box, "echo kept > note; curl -sS --max-time 60 -o /dev/null http://plain.example.com/"); code != 0 {
			t.Errorf("cycle %d: %s", n, out)
		}
		if n%4 == 0 {
			for _, act := range []string{"pause", "resume"} {
				if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, act), nil, nil); err != nil {
					t.Errorf("cycle %d: %s: %v", n, act, err)
				}
			}
		}
		if n%4 == 1 {
			if err := w.Client.Do(t.Context(), "POST", api.BoxPath(box, "preview"), map[string]any{"port": 8000}, nil); err != nil {
				t.Errorf("cycle %d: %v", n, err)
			}
		}
		w.MustDelete(box)
		if out, code := w.GatewayCommand("box", "attach", "--pid", strconv.Itoa(f.PID), "--name", "guest"); code != 0 {
			t.Errorf("cycle %d: %s", n, out)
		}
		if out, code := w.GatewayCommand("box", "detach", "guest"); code != 0 {
			t.Errorf("cycle %d: %s", n, out)
		}
	}
	for n := range 8 { // allocate the resources that are kept
		cycle(n)
	}
	before := traces(w)
	for n := range cycles {
		cycle(n)
	}
	// A connection or a goroutine may be ending, or a pool growing; a leak is one per cycle.
	slack := map[string]int{"descriptors": max(10, cycles/4), "goroutines": max(10, cycles/4)}
	var left []string
	t.Cleanup(func() {
		if len(left) > 0 {
			t.Logf("still there: %v", left)
		}
	})
	w.UntilEvery(100*time.Millisecond, "what is left is what was there before", func() bool {
		left = nil
		now := traces(w)
		for _, what := range slices.Sorted(maps.Keys(now)) {
			if now[what] > before[what]+slack[what] {
				left = append(left, fmt.Sprintf("%s: %d, were %d", what, now[what], before[what]))
			}
		}
		left = append(left, groupsOf(made)...)
		return len(left) == 0
	})
}

// Many boxes, launched and attached, work before and after a restart of the gateway, within the memory of a small host.
func TestManyBoxes(t *testing.T) {
	t.Parallel()
	_, launched, attached := scaleOf(t)
	w := harness.Shared(t)
	bare := w.Metric("process_resident_memory_bytes")
	policy := harness.Custom("plain.example.com")
	began := time.Now()
	boxes := make([]string, launched+attached)
	var all sync.WaitGroup
	limit := make(chan struct{}, 4)
	for i := range boxes {
		all.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			if i < launched {
				boxes[i] = w.Create(map[string]any{"network_policy": policy})
				return
			}
			f := harness.NewForeignBox(t)
			var box struct{ ID string }
			if err := w.Client.Do(t.Context(), "POST", "/v2/box/attach", map[string]any{"pid": f.PID, "network_policy": policy}, &box); err != nil {
				t.Error(err)
			}
			boxes[i] = box.ID
			w.Adopt(box.ID, f)
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	works := func(when string) {
		t.Helper()
		for _, box := range boxes {
			all.Go(func() {
				limit <- struct{}{}
				defer func() { <-limit }()
				if out, code := w.Sh(box, "curl -sS --max-time 60 --retry 3 --retry-all-errors -o /dev/null http://plain.example.com/"); code != 0 {
					t.Errorf("%s: box %s: %d %s", when, box, code, out)
				}
			})
		}
		all.Wait()
		t.Logf("%s: %d boxes, %.0f KiB of memory each, %d descriptors, %.0f goroutines, after %v", when, len(boxes),
			(w.Metric("process_resident_memory_bytes")-bare)/float64(len(boxes))/1024, entries(fmt.Sprintf("/proc/%d/fd", w.Process.Process.Pid)),
			w.Metric("go_goroutines"), time.Since(began).Round(time.Millisecond))
	}
	works("made")
	w.Kill()
	began = time.Now()
	w.StartIfStopped()
	t.Logf("started again in %v", time.Since(began).Round(time.Millisecond))
	works("after a restart of the gateway")
	var views []struct{ Status string }
	if err := w.Client.Get(t.Context(), "/v2/box", &views); err != nil || len(views) != len(boxes) {
		t.Errorf("%d boxes, %v", len(views), err)
	}
	for i, v := range views {
		if v.Status != string(api.StatusIdle) && v.Status != string(api.StatusRunning) {
			t.Errorf("box %d is %s", i, v.Status)
		}
	}
}
