package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatch: output and status are passed on, and the longest silence is found, also before the first and after the last
// line. The silence on an idle machine decides which is longest.
func TestWatch(t *testing.T) {
	t.Parallel()
	const pause = 300 * time.Millisecond
	for _, test := range []struct{ script, after string }{
		{"sleep 0.3; echo one; echo two >&2; exit 3", ""},
		{"echo one; read x <go; echo two; exit 3", "one"},
		{"echo one; printf two; read x <go; exit 3", "one"},
	} {
		dir := t.TempDir()
		if err := unix.Mkfifo(filepath.Join(dir, "go"), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", test.script)
		cmd.Dir = dir
		in, out := io.Pipe()
		var r result
		var err error
		done := make(chan struct{})
		start := time.Now()
		go func() {
			defer close(done)
			r, err = watch(cmd, out, func() time.Duration { return time.Since(start) / 2 })
			_ = out.Close() // never fails
		}()
		lines := bufio.NewScanner(in)
		lines.Scan() // the time of the line has been taken before it is printed
		first := lines.Text()
		if strings.Contains(test.script, "read") {
			time.Sleep(pause) // the silence
			if err := os.WriteFile(filepath.Join(dir, "go"), []byte("\n"), 0); err != nil {
				t.Fatal(err)
			}
		}
		lines.Scan()
		second, more := lines.Text(), lines.Scan()
		<-done
		if err != nil || first != "one" || second != "two" || more || r.status != 3 {
			t.Errorf("%s: it printed %q, %q: %+v, %v", test.script, first, second, r, err)
		}
		if r.silence < pause-time.Millisecond || r.total < r.silence || r.idle < r.silence/2-time.Millisecond || r.idle > r.silence || r.after != test.after {
			t.Errorf("%s: %+v", test.script, r)
		}
	}
}

// TestRecord: a line has seven fields, whatever was printed.
func TestRecord(t *testing.T) {
	t.Parallel()
	table := filepath.Join(t.TempDir(), "table.tsv")
	r := result{status: 1, total: 3 * time.Second, silence: 2 * time.Second, idle: time.Second, after: "a\tb\r" + strings.Repeat("é", 100)}
	for range 2 {
		if err := r.record(table, "trixie", "demo"); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(table)
	if want := "trixie\tdemo\t1\t3000\t2000\t1000\ta b " + strings.Repeat("é", 56) + "\n"; err != nil || string(data) != want+want {
		t.Errorf("%v: %q", err, data)
	}
}

// TestSlowdown: only the load of others makes a silence longer.
func TestSlowdown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		contention, others float64
		want               float64
	}{
		{1, 0, 1},
		{5, 0, 1},     // its own threads wait for each other
		{1, 1.9, 1},   // it was never kept waiting
		{10, 1, 2},    // the others left half of the machine
		{4, 1.9, 4},   // it computed a little
		{4, 2, 4},     // it computed nothing
		{0.5, 0.1, 1}, // an error of measurement
		{3, -1, 1},
	} {
		if got := slowdown(test.contention, test.others, 2); got != test.want {
			t.Errorf("contention %v, others on %v of 2 processors: %v, want %v", test.contention, test.others, got, test.want)
		}
	}
}

// TestMachine: the clock of the idle machine never runs faster than time, nor backwards, and processes are attributed.
func TestMachine(t *testing.T) {
	t.Parallel()
	start := time.Now()
	m := newMachine(false)
	m.sample(contention())
	first := m.idle()
	m.sample(1000)
	if second, passed := m.idle(), time.Since(start); first <= 0 || second < first || second > passed {
		t.Errorf("%v, then %v, in %v", first, second, passed)
	}
	if m.own < sampleWork-clockTick || m.busy < m.own || (&machine{system: true}).ownTime() < m.own-2*clockTick {
		t.Errorf("this process used %v of %v", m.own, m.busy)
	}
	parents := map[int]int{5: 4, 4: 3, 3: 1, 9: 9}
	if !descends(5, 3, parents) || descends(3, 3, parents) || descends(9, 3, parents) {
		t.Error("a process is attributed to the wrong ancestor")
	}
	parent, used := processStat([]byte("7 (a) b) S 3 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0\n"))
	if parent != 3 || used != 10*clockTick {
		t.Errorf("the parent %d, %v", parent, used)
	}
}
