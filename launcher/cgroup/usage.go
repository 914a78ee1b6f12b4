package cgroup

import (
	"bytes"
	"errors"
	"fmt"
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
