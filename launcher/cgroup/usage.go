package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is the resource usage of a group's members, past and present, since the group was created.
type Usage struct {
	// Life identifies the group: a new one with the same name counts from zero.
	Life       string
	CPU        time.Duration
	Memory     int64 // current
	PeakMemory int64 // 0 if the kernel does not report it (version 2 before Linux 5.19)
	OOMKills   uint64
}

// ErrGone means that the group does not exist.
var ErrGone = errors.New("there is no such control group")

// Usage reads the usage of the group. A frozen or idle group uses no CPU time.
func (g Group) Usage() (Usage, error) {
	h, err := mounted()
	if err != nil {
		return Usage{}, err
	}
	cpu, memory := below(h.cpuacct, g), below(h.memory, g)
	if h.unified != "" {
		cpu, memory = below(h.unified, g), below(h.unified, g)
	}
	u := Usage{OOMKills: oomKills(h, memory)}
	if u.Life, err = lifeOf(cpu); err != nil {
		return Usage{}, err
	}
	if h.unified != "" {
		u.CPU = usageOf(filepath.Join(cpu, "cpu.stat"))
		u.Memory, u.PeakMemory = numberIn(memory, "memory.current"), numberIn(memory, "memory.peak")
	} else {
		u.CPU = time.Duration(numberIn(cpu, "cpuacct.usage"))
		u.Memory, u.PeakMemory = numberIn(memory, "memory.usage_in_bytes"), numberIn(memory, "memory.max_usage_in_bytes")
	}
	if again, err := lifeOf(cpu); err != nil || again != u.Life { // the group was replaced during the call
		return Usage{}, errors.Join(ErrGone, err)
	}
	return u, nil
}

// Cache returns how many bytes of the group's memory hold files; 0 if unknown.
func (g Group) Cache() int64 {
	h, err := mounted()
	switch {
	case err != nil:
		return 0
	case h.unified != "":
		return fields(below(h.unified, g), "memory.stat", "file")
	}
	return fields(below(h.memory, g), "memory.stat", "total_cache")
}

// OOMKills returns how many processes in the group and its subgroups the kernel has killed because the group ran out of
// memory.
func (g Group) OOMKills() uint64 {
	h, err := mounted()
	if err != nil {
		return 0
	}
	if h.unified != "" {
		return oomKills(h, below(h.unified, g))
	}
	return oomKills(h, below(h.memory, g))
}

func oomKills(h hierarchies, dir string) uint64 {
	if dir == "" {
		return 0
	}
	file := "memory.oom_control"
	if h.unified != "" {
		file = "memory.events"
	}
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

// lifeOf identifies a group among all groups since boot.
func lifeOf(dir string) (string, error) {
	if dir == "" {
		return "", ErrGone
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", fmt.Errorf("%w: %w", ErrGone, err)
	}
	return strconv.FormatUint(st.Ino, 10), nil
}

// numberIn reads a file with one number; 0 if it is missing.
func numberIn(dir, file string) int64 {
	if dir == "" {
		return 0
	}
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(string(bytes.TrimSpace(data)), 10, 64)
	return n
}

// Writes counts the disk writes of a group's members.
type Writes struct {
	Pending int64 // bytes in memory that are still to be written
	Total   int64 // bytes written since the group was created, or by its current processes
}

// Writes reads the disk writes of the group's members. Values that the kernel does not report are 0.
func (g Group) Writes() (w Writes) {
	h, err := mounted()
	if err != nil {
		return w
	}
	if h.unified != "" {
		dir := below(h.unified, g)
		return Writes{Pending: fields(dir, "memory.stat", "file_dirty", "file_writeback"), Total: max(written(dir, "io.stat"), ofProcesses(dir))}
	}
	dir := below(h.memory, g) // version 1 only counts disk writes that are throttled
	return Writes{Pending: fields(dir, "memory.stat", "total_dirty", "total_writeback"), Total: ofProcesses(dir)}
}

// ofProcesses adds up the bytes written by the processes of a group and its subgroups.
func ofProcesses(dir string) (sum int64) {
	if dir == "" {
		return 0
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		pids, err := os.ReadFile(path)
		if err != nil {
			return nil // the group was removed
		}
		for pid := range strings.Lines(string(pids)) {
			sum += fields(filepath.Join("/proc", strings.TrimSpace(pid)), "io", "write_bytes:")
		}
		return nil
	})
	return sum
}

// fields adds up the values of named lines of a file.
func fields(dir, file string, names ...string) (sum int64) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if dir == "" || err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		for _, name := range names {
			if value, ok := strings.CutPrefix(line, name+" "); ok {
				n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
				sum += n
			}
		}
	}
	return sum
}

// written adds up the bytes written to all disks.
func written(dir, file string) (sum int64) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if dir == "" || err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		for _, word := range strings.Fields(line) {
			if value, ok := strings.CutPrefix(word, "wbytes="); ok {
				n, _ := strconv.ParseInt(value, 10, 64)
				sum += n
			}
		}
	}
	return sum
}
