package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

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
