package share

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"boxgate/config"
	"boxgate/preflight"
)

// hostOf writes the files from which a process learns its memory limits.
func hostOf(t *testing.T, files map[string]string) (proc, cgroups string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "proc"), filepath.Join(dir, "cgroup")
}

func TestMemoryOfTheHost(t *testing.T) {
	t.Parallel()
	const machine = "MemFree: 1 kB\nMemTotal:       16777216 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"machine": {map[string]string{"proc/meminfo": machine}, 4 << 30},
		"version 2": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "0::/system.slice/boxgate.service\n",
			"cgroup/system.slice/boxgate.service/memory.max": "1073741824\n",
		}, 768 << 20},
		"version 2, a limit above": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "0::/a/b\n", "cgroup/a/b/memory.max": "max\n", "cgroup/a/memory.max": "2147483648\n",
		}, 1536 << 20},
		"version 2, throttled": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "0::/a\n", "cgroup/a/memory.max": "2147483648\n", "cgroup/a/memory.high": "1073741824\n",
		}, 768 << 20},
		"version 1": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n",
			"cgroup/memory/docker/1/memory.limit_in_bytes": "536870912\n", "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 384 << 20},
		"version 1 without a limit": {map[string]string{
			"proc/meminfo": machine, "proc/self/cgroup": "4:memory:/\n", "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 4 << 30},
		"a namespace's root": {map[string]string{"proc/meminfo": machine, "proc/self/cgroup": "0::/\n", "cgroup/memory.max": "1073741824\n"}, 768 << 20},
		"nothing known":      {nil, config.MinMemory},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hostMemory(hostOf(t, c.files)); got != c.want {
				t.Errorf("%d MiB, want %d", got>>20, c.want>>20)
			}
		})
	}
}

func TestMemoryIsSharedOut(t *testing.T) {
	t.Parallel()
	l := config.DefaultLimits()
	if m := shareMemory(l, 8<<30); m.all != 8<<30 || m.boxes != 4<<30 || m.box != 256<<20 {
		t.Errorf("%+v", m)
	}
	if m := shareMemory(l, 1<<20); m.all != config.MinMemory || m.box != m.boxes {
		t.Errorf("a host with nothing: %+v", m)
	}
	l.ProcessMemory = 1 << 30
	if m := shareMemory(l, 8<<30); m.all != 1<<30 || m.boxes != 512<<20 {
		t.Errorf("configured: %+v", m)
	}
}

func TestCheckWarnsOfMemory(t *testing.T) {
	t.Parallel()
	l := config.DefaultLimits()
	if err := memoryFindings(l, 6<<30, 10); err != nil {
		t.Errorf("10 boxes: %v", err)
	}
	l.ProcessMemory = 8 << 30
	err := memoryFindings(l, 6<<30, 100)
	lacks := preflight.Errors(err)
	if len(lacks) != 2 || !strings.Contains(err.Error(), "limits.process_memory is 8GiB, and a gateway on this host should have 6GiB") ||
		!strings.Contains(err.Error(), "limits.memory lets each of 100 boxes make the gateway hold 256MiB, and there are 4GiB") {
		t.Fatalf("%v", err)
	}
	for _, lack := range lacks {
		if _, ok := lack.(preflight.Warning); !ok { //nolint:errorlint // it is what printFindings prints
			t.Errorf("not a warning: %v", lack)
		}
	}
}

func TestPercentOfGarbage(t *testing.T) {
	for held, want := range map[uint64]int{0: mostPercent, 1 << 20: mostPercent, 16 << 20: 400, 64 << 20: 100, 1 << 30: 100} {
		if got := percent(held, 64<<20); got != want {
			t.Errorf("%d bytes: %d", held, got)
		}
	}
}

var kept []byte

// With a small live heap, garbage is collected once leastGarbage has accumulated.
func TestLittleGarbageIsNotCollected(t *testing.T) {
	stop := paceCollections(64 << 20)
	defer debug.SetGCPercent(100)
	defer stop()
	runtime.GC()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 640 {
		kept = make([]byte, 1<<20)
	}
	runtime.ReadMemStats(&after)
	if n := after.NumGC - before.NumGC; n > 25 {
		t.Errorf("640 MiB of garbage were collected in %d times", n)
	}
}

// With a large live heap, collections are as frequent as by default; after it shrinks, they become rare again.
func TestPaceFollowsWhatIsHeld(t *testing.T) {
	stop := paceCollections(64 << 20)
	defer debug.SetGCPercent(100)
	defer stop()
	await := func(what string, is func(percent uint64) bool) {
		t.Helper()
		gogc := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		for end := time.Now().Add(time.Minute); ; {
			runtime.GC()
			metrics.Read(gogc)
			if is(gogc[0].Value.Uint64()) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d %%", what, gogc[0].Value.Uint64())
			}
		}
	}
	for range 3 {
		kept = nil
		await("with little", func(percent uint64) bool { return percent > 500 })
		kept = make([]byte, 128<<20)
		await("with much", func(percent uint64) bool { return percent == 100 })
	}
	kept = nil
}

func TestRestAfterABurst(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	now := time.Unix(1000, 0)
	var r restDetector
	step := func(what string, want bool, h heap) {
		t.Helper()
		now = now.Add(restPeriod)
		if got := r.due(now, h); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	step("a burst", false, heap{allocated: 500 * mb, live: 40 * mb, objects: 60 * mb, free: 10 * mb})
	step("quiet for a moment", false, heap{allocated: 500 * mb, live: 40 * mb, objects: 60 * mb, free: 10 * mb})
	step("at rest", true, heap{allocated: 501 * mb, live: 40 * mb, objects: 60 * mb, free: 10 * mb})
	r.gaveBack(100*time.Millisecond, now)
	step("at rest, with nothing to give back", false, heap{allocated: 501 * mb, live: 40 * mb, objects: 41 * mb})
	step("at rest, too soon again", false, heap{allocated: 502 * mb, live: 40 * mb, objects: 60 * mb})
	now = now.Add(restShare * 100 * time.Millisecond)
	step("busy", false, heap{allocated: 520 * mb, live: 40 * mb, objects: 60 * mb})
	step("quiet for a moment", false, heap{allocated: 521 * mb, live: 40 * mb, objects: 60 * mb})
	step("at rest, with little to give back", false, heap{allocated: 521 * mb, live: 40 * mb, objects: 42 * mb, free: 7 * mb})
	step("at rest with free memory", true, heap{allocated: 521 * mb, live: 40 * mb, objects: 42 * mb, free: 8 * mb})
	step("while a collection runs", false, heap{allocated: 521 * mb, live: 40 * mb, objects: 30 * mb})
}

func TestHeapIsRead(t *testing.T) {
	t.Parallel()
	if h := heapReader()(); h.allocated == 0 || h.objects == 0 || h.objects > h.allocated {
		t.Errorf("%+v", h)
	}
}
