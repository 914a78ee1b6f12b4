package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// samplePause is the time between two samples of the machine's load.
	samplePause = 500 * time.Millisecond
	// sampleWork is the processor time of a sample. It is several time slices of the kernel's scheduler, as a thread gets
	// the first one soon after it has slept.
	sampleWork = 20 * time.Millisecond
	// clockTick is the unit of processor times below /proc (USER_HZ).
	clockTick = 10 * time.Millisecond
)

// machine measures how much other programs slow the watched one down. Safe for concurrent use.
type machine struct {
	system bool // all processes are the watched program's, not just the children

	mu     sync.Mutex
	at     time.Time     // of the last sample; guarded by mu
	passed time.Duration // time as on an idle machine, at the last sample; guarded by mu
	factor float64       // how many times slower the program runs than alone, at least 1; guarded by mu

	busy, own time.Duration // processor time of all processes and of the watched ones, at the last sample
}

func newMachine(system bool) *machine {
	m := &machine{system: system, at: time.Now(), factor: 1}
	m.busy, m.own = processorTime(), m.ownTime()
	return m
}

// idle returns the time since newMachine as it would have passed on an idle machine.
func (m *machine) idle() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.passed + time.Duration(float64(time.Since(m.at))/m.factor)
}

// follow takes samples until stop is called.
func (m *machine) follow() (stop func()) {
	end := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for {
			select {
			case <-end:
				return
			case <-time.After(samplePause):
				m.sample(contention())
			}
		}
	})
	return func() { close(end); running.Wait() }
}

// sample notes that a thread ran contention times slower than alone. Threads of the watched program contend, too, and
// would do so on an idle machine: the factor is at most the machine's capacity divided by the part that others left.
func (m *machine) sample(contention float64) {
	busy, own := processorTime(), m.ownTime()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	elapsed := now.Sub(m.at)
	if elapsed <= 0 {
		return
	}
	others := float64((busy-m.busy)-(own-m.own)) / float64(elapsed)
	m.busy, m.own = busy, own
	m.factor = slowdown(contention, others, float64(runtime.NumCPU()))
	m.passed += time.Duration(float64(elapsed) / m.factor)
	m.at = now
}

// slowdown returns how many times slower the watched program runs than alone, if a thread runs contention times slower
// than alone and other programs use so many of the processors.
func slowdown(contention, others, processors float64) float64 {
	left := processors - min(max(others, 0), processors)
	return max(1, min(contention, processors/max(left, 0.01)))
}

// contention returns how many times slower than alone this thread computes.
func contention() float64 {
	start, startUsed := time.Now(), threadTime()
	for {
		passed, used := time.Since(start), threadTime()-startUsed
		if used >= sampleWork || passed > time.Minute {
			return float64(passed) / float64(max(used, 1))
		}
	}
}

// threadTime returns the processor time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // every Linux has this clock
	return time.Duration(t.Nano())
}

// processorTime returns the time that the processors were busy, also for other virtual machines (proc_stat(5)).
func processorTime() (busy time.Duration) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	fields := bytes.Fields(line)
	for i, field := range fields {
		switch i {
		case 1, 2, 3, 6, 7, 8: // user, nice, system, irq, softirq, steal
			n, _ := strconv.ParseInt(string(field), 10, 64)
			busy += time.Duration(n) * clockTick
		}
	}
	return busy
}

// ownTime returns the processor time of the watched program. Processes that have ended count for their parent, which
// inherits orphans' times only as the first process: without system, those of ended orphans are missing.
func (m *machine) ownTime() (own time.Duration) {
	if !m.system {
		for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
			var u unix.Rusage
			if unix.Getrusage(who, &u) == nil {
				own += time.Duration(u.Utime.Nano() + u.Stime.Nano())
			}
		}
	}
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	parents, times := map[int]int{}, map[int]time.Duration{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parents[pid], times[pid] = processStat(data)
	}
	self := os.Getpid()
	for pid, used := range times {
		if m.system || descends(pid, self, parents) {
			own += used
		}
	}
	return own
}

// descends reports whether a process descends from another one.
func descends(pid, from int, parents map[int]int) bool {
	for range len(parents) {
		if pid = parents[pid]; pid == from {
			return true
		}
	}
	return false
}

// processStat returns the parent of a process, and its processor time with that of its children that have ended
// (proc_pid_stat(5)).
func processStat(data []byte) (parent int, used time.Duration) {
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:]) // from the third on
	if len(fields) < 15 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, _ := strconv.ParseInt(string(field), 10, 64)
		used += time.Duration(n) * clockTick
	}
	return parent, used
}
