// Package proc reads the CPU time and the memory of a program under test: a process and its children.
package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree returns a process and all its living descendants.
func Tree(root int) ([]int, error) {
	children, err := children()
	if err != nil {
		return nil, err
	}
	tree := []int{root}
	for i := 0; i < len(tree); i++ {
		tree = append(tree, children[tree[i]]...)
	}
	return tree, nil
}

func children() (map[int][]int, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	out := map[int][]int{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		s, err := parseStat(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out[s.parent] = append(out[s.parent], s.pid)
	}
	return out, nil
}

// stat holds the needed fields of a line of /proc/PID/stat.
type stat struct{ pid, parent int }

// parseStat reads a line of /proc/PID/stat. The name of the command may contain spaces and parentheses.
func parseStat(line string) (s stat, err error) {
	begin, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if begin < 0 || end < begin {
		return s, fmt.Errorf("no command in %q", line)
	}
	if s.pid, err = strconv.Atoi(strings.TrimSpace(line[:begin])); err != nil {
		return s, err
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 2 {
		return s, fmt.Errorf("%q ends after the command", line)
	}
	s.parent, err = strconv.Atoi(fields[1])
	return s, err
}

// Times are the CPU times of processes in nanoseconds.
type Times map[int]int64

// CPU returns the CPU time used by the processes so far. /proc/PID/stat has a resolution of 10 ms; this clock counts
// nanoseconds.
func CPU(pids []int) Times {
	times := Times{}
	for _, pid := range pids {
		var ts unix.Timespec
		// The clock of another process: CPUCLOCK_SCHED in the kernel's encoding of a PID.
		if unix.ClockGettime(int32(^pid<<3|2), &ts) == nil {
			times[pid] = ts.Nano()
		}
	}
	return times
}

// Since returns the CPU time spent since an earlier reading.
func (t Times) Since(earlier Times) (ns int64) {
	for pid, now := range t {
		ns += max(now-earlier[pid], 0)
	}
	return ns
}

// Memory returns the resident memory of the processes in bytes. Shared pages are divided among their users.
func Memory(pids []int) (bytes int64, err error) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		n, err := parseRollup(string(text))
		if err != nil {
			return 0, err
		}
		bytes += n
	}
	return bytes, nil
}

// parseRollup returns the proportional set size in a smaps_rollup file.
func parseRollup(text string) (int64, error) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "Pss:" && fields[2] == "kB" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no Pss in %q", text)
}

// Machine describes the machine of a benchmark.
func Machine() string {
	var name unix.Utsname
	kernel := "unknown kernel"
	if unix.Uname(&name) == nil {
		kernel = "Linux " + unix.ByteSliceToString(name.Release[:])
	}
	return fmt.Sprintf("%d × %s, %s, %s", runtime.NumCPU(), processor(), kernel, runtime.Version())
}

func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	return parseProcessor(string(text))
}

// parseProcessor returns the name of the first processor in /proc/cpuinfo. Some architectures list none.
func parseProcessor(text string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// Load returns the machine's load average over the last minute.
func Load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(text), " ")
	return load
}

// tick is the resolution of /proc/stat in nanoseconds.
const tick = 10_000_000

// Softirq returns the time that the machine has spent in softirqs, in which the kernel processes packets, in
// nanoseconds. It returns 0 if the time cannot be read.
func Softirq() int64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	ticks, err := parseSoftirq(string(text))
	if err != nil {
		return 0
	}
	return ticks * tick
}

// parseSoftirq returns the ticks in softirqs of a /proc/stat file.
func parseSoftirq(text string) (int64, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return 0, fmt.Errorf("not the times of all processors: %q", line)
	}
	return strconv.ParseInt(fields[7], 10, 64)
}

// Packets returns the number of packets received and sent on the interfaces of this process's network namespace, or 0
// if it cannot be read.
func Packets() int64 {
	text, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return 0
	}
	n, err := parsePackets(string(text))
	if err != nil {
		return 0
	}
	return n
}

// parsePackets adds up the packets of a /proc/net/dev file, except on the loopback interface.
func parsePackets(text string) (sum int64, err error) {
	for line := range strings.Lines(text) {
		name, counters, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) == "lo" {
			continue
		}
		fields := strings.Fields(counters)
		if len(fields) < 10 {
			return 0, fmt.Errorf("too few counters: %q", line)
		}
		for _, f := range []string{fields[1], fields[9]} {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}
