package share

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		!strings.Contains(err.Error(), "limits.memory lets each of 100 box(es) make the gateway hold 256MiB, and there are 4GiB") {
		t.Fatalf("%v", err)
	}
	for _, lack := range lacks {
		if _, ok := lack.(preflight.Warning); !ok { //nolint:errorlint // it is what printFindings prints
			t.Errorf("not a warning: %v", lack)
		}
	}
}
