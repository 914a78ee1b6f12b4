package proc

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

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
