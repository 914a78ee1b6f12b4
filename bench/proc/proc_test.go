package proc

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestParseStat(t *testing.T) {
	s, err := parseStat("42 (a (b) c) S 7 42 42 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 1")
	if err != nil || s != (stat{pid: 42, parent: 7}) {
		t.Errorf("got %+v, %v", s, err)
	}
	for _, bad := range []string{"", "42", "42 (x", "42 (x)", "x (y) S 1", "42 )x( S 1"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("42 (a (b) c) S 7 42")
	f.Fuzz(func(_ *testing.T, line string) { _, _ = parseStat(line) })
}

func TestParseRollup(t *testing.T) {
	n, err := parseRollup("00400000-7fff rollup\nRss:  900 kB\nPss:   123 kB\nPss_Anon: 7 kB\n")
	if err != nil || n != 123<<10 {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := parseRollup("Rss: 1 kB\n"); err == nil {
		t.Error("a file without Pss was accepted")
	}
}

func TestParseProcessor(t *testing.T) {
	if got := parseProcessor("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n"); got != "Some CPU @ 2 GHz" {
		t.Errorf("got %q", got)
	}
}

func TestTreeHasChildren(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = child.Process.Kill(), child.Wait() }()
	tree, err := Tree(os.Getpid())
	if err != nil || !slices.Contains(tree, child.Process.Pid) || tree[0] != os.Getpid() {
		t.Errorf("the tree is %v, %v; the child is %d", tree, err, child.Process.Pid)
	}
}

func TestCPUAndMemoryOfThisProcess(t *testing.T) {
	self := []int{os.Getpid()}
	before := CPU(self)
	for sum, i := 0, 0; i < 50_000_000; i++ {
		sum += i
	}
	if spent := CPU(self).Since(before); spent <= 0 {
		t.Errorf("a loop took %d ns", spent)
	}
	if n, err := Memory(self); err != nil || n < 1<<20 {
		t.Errorf("memory is %d, %v", n, err)
	}
}

func TestParseSoftirq(t *testing.T) {
	if n, err := parseSoftirq("cpu  1 2 3 4 5 6 77 8 9 10\ncpu0 0 0 0 0 0 0 0 0\n"); err != nil || n != 77 {
		t.Errorf("got %d, %v", n, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "intr 1 2 3 4 5 6 7 8"} {
		if _, err := parseSoftirq(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestParsePackets(t *testing.T) {
	const text = "Inter-|   Receive |  Transmit\n face |bytes packets errs\n    lo: 1 1000 0 0 0 0 0 0 1 1000 0 0 0 0 0 0\n  eth0: 1 20 0 0 0 0 0 0 1 3 0 0 0 0 0 0\n"
	if n, err := parsePackets(text); err != nil || n != 23 {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := parsePackets("eth0: 1 2\n"); err == nil {
		t.Error("a line without counters was accepted")
	}
}
