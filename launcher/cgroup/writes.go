package cgroup

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

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
