package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"boxgate/audit/lines"
	"boxgate/policy"
)

// childVariable turns this test binary into a process that logs decisions to its standard error, to be killed.
const childVariable = "BOXGATE_AUDIT_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		logUntilKilled()
	}
	os.Exit(m.Run())
}

// logUntilKilled carries out the orders on its standard input and acknowledges each: "refuse" and "allow" record a
// decision, "flood" records allowing ones endlessly and reports the ones recorded before the last sync of the log.
func logUntilKilled() {
	out := lines.New(lines.File(os.Stderr))
	l := New(Options{Lines: out})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		what, name, _ := strings.Cut(in.Text(), " ")
		switch what {
		case "refuse":
			l.Record(denial(name))
		case "allow":
			l.Record(Event{Box: "b", Name: name, Verdict: policy.Allow})
		case "flood":
			for i := 1; ; i++ {
				l.Record(Event{Box: "b", Name: fmt.Sprint(i), Verdict: policy.Allow})
				if i%1000 == 0 && out.Sync() == nil {
					fmt.Println(i)
				}
			}
		}
		fmt.Println("done")
	}
	os.Exit(0)
}

// child is such a process.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.Writer
	out    *bufio.Scanner
	logged func() string // the output so far; all of it if it was killed
}

// newChild starts a child that logs to a file or to a pipe.
func newChild(t *testing.T, pipe bool) *child {
	c := &child{t: t, cmd: exec.CommandContext(t.Context(), os.Args[0])}
	c.cmd.Env = append(os.Environ(), childVariable+"=1")
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewScanner(out)
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c.logged = func() string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if c.cmd.Stderr = f; pipe {
		var read bytes.Buffer
		c.cmd.Stderr = &read // by a goroutine, through a pipe
		c.logged = read.String
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// do gives an order, and returns after it was carried out.
func (c *child) do(order string) {
	c.t.Helper()
	fmt.Fprintln(c.in, order)
	if !c.out.Scan() || c.out.Text() != "done" {
		c.t.Fatalf("%s: %q %v", order, c.out.Text(), c.out.Err())
	}
}

// kill kills the process and returns the events it has logged.
func (c *child) kill() (events []Event) {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = c.cmd.Wait()
	for line := range strings.Lines(c.logged()) {
		if !strings.HasSuffix(line, "\n") {
			break // the last line, torn by the kill in the middle of a write
		}
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			c.t.Fatalf("a torn line: %q %v", line, err)
		}
		events = append(events, e)
	}
	return events
}

// A refusal after some silence is in the log as soon as it has been recorded, even if the process is killed.
func TestAKilledGatewayHasLoggedItsRefusal(t *testing.T) {
	t.Parallel()
	for _, pipe := range []bool{false, true} {
		c := newChild(t, pipe)
		c.do("refuse evil.example.net")
		if events := c.kill(); len(events) != 1 || events[0].Name != "evil.example.net" {
			t.Errorf("pipe %v: logged %+v", pipe, events)
		}
	}
}

// An allowing decision is logged without any further activity.
func TestAKilledGatewayHasLoggedWhatItAllowed(t *testing.T) {
	t.Parallel()
	c := newChild(t, false)
	c.do("allow api.example.com")
	for deadline := time.Now().Add(time.Minute); c.logged() == "" && time.Now().Before(deadline); {
		c.do("nothing") // an acknowledgment, which also takes some time
	}
	if events := c.kill(); len(events) != 1 || events[0].Name != "api.example.com" {
		t.Errorf("logged %+v", events)
	}
}

// After a kill in the middle of a flood of events, the log has everything up to some event: whole lines, in order,
// without gaps, and at least up to the last sync.
func TestAKilledGatewayLosesOnlyTheLatest(t *testing.T) {
	t.Parallel()
	for _, pipe := range []bool{false, true} {
		c := newChild(t, pipe)
		fmt.Fprintln(c.in, "flood")
		synced := 0
		for range 7 {
			if !c.out.Scan() {
				t.Fatal(c.out.Err())
			}
			if _, err := fmt.Sscan(c.out.Text(), &synced); err != nil {
				t.Fatal(err)
			}
		}
		events := c.kill()
		for i, e := range events {
			if e.Seq != uint64(i+1) || e.Name != fmt.Sprint(i+1) {
				t.Fatalf("pipe %v: event %d is %+v", pipe, i+1, e)
			}
		}
		if len(events) < synced {
			t.Errorf("pipe %v: %d events are logged of %d that were synced", pipe, len(events), synced)
		}
	}
}
