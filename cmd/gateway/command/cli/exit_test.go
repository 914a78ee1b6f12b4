package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/policy/document"
)

// command returns a command of a group, as in error messages.
func command() *cobra.Command {
	root, box := &cobra.Command{Use: "gateway"}, &cobra.Command{Use: "box"}
	root.AddCommand(box)
	return box
}

// TestReport: each kind of error has its exit status and text, also inside another error.
func TestReport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
		text   string
	}{
		{nil, ExitOK, ""},
		{errors.New("refused"), ExitFailed, "gateway: refused\n"},
		{Usagef("%q is not a port", "x"), ExitUsage, "gateway: \"x\" is not a port\nSee `gateway box --help`.\n"},
		{fmt.Errorf("--policy: %w", UsageError(errors.New("not JSON"))), ExitUsage, "gateway: --policy: not JSON\nSee `gateway box --help`.\n"},
		{StatusError{ExitUntestable, errors.New("cannot be tested")}, ExitUntestable, "gateway: cannot be tested\n"},
		{CommandExit{7}, 7, ""},
	} {
		var out bytes.Buffer
		if status := Report(&out, command(), c.err, false); status != c.status || out.String() != c.text {
			t.Errorf("%v: status %d, %q; want %d, %q", c.err, status, out.String(), c.status, c.text)
		}
	}
}

// TestReportAsJSON: the error is one line of JSON and includes the gateway's response.
func TestReportAsJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{Usagef("%q is not a port", "x"), `{"error":"\"x\" is not a port","exit_status":2}`},
		{fmt.Errorf("demo: %w", &api.ResponseError{Status: 422, Message: "/mode: no", Pointer: "/mode"}), `{"error":"demo: /mode: no","exit_status":1,"http_status":422,"pointer":"/mode"}`},
		{CommandExit{7}, ""},
	} {
		var out bytes.Buffer
		Report(&out, command(), c.err, true)
		if got := strings.TrimSpace(out.String()); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// TestExplainNamesFlags: a refusal of the gateway names the flag or argument that sent the value, in the flag's unit.
func TestExplainNamesFlags(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{Use: "make BOX"}
	var lasts, grace time.Duration
	Duration(cmd.Flags(), &lasts, "for", 0, "how long")
	Duration(cmd.Flags(), &grace, "grace-time", 0, "how long")
	cmd.Flags().String("policy", "", "")
	cmd.Flags().StringArray("source", nil, "")
	cmd.Flags().StringArray("limit", nil, "")
	MapFields(cmd, map[string]string{"/expires_in": "--for", "/network_policy": "--policy", "/limits": "--limit=", "/sources": "--source", "/port": "PORT"})
	for _, c := range []struct{ pointer, message, want string }{
		{"/expires_in", "must be between 1 and 2592000 seconds", "--for: must be between 1s and 30d"},
		{"/expires_in", "must be between 1 and 604800000 milliseconds", "--for: must be between 1ms and 7d"},
		{"/expires_in", "must be at most 5400 seconds", "--for: must be at most 1h30m"},
		{"/expires_in", "must be a duration from 0s to 87840h0m0s", "--for: must be a duration from 0s to 3660d"},
		{"/grace_time", "must be more than 3600 seconds", "--grace-time: must be more than 1h"},
		{"/network_policy/mode", "is missing", "--policy: /mode: is missing"},
		{"/limits/connections", "must be 1 to 1000000", "--limit connections: must be 1 to 1000000"},
		{"/limits/memory", "must be 16777216 to 1099511627776", "--limit memory: must be 16MiB to 1TiB"},
		{"/sources/1", "is no address", "--source: is no address"},
		{"/port", "must be between 1 and 65535", "PORT: must be between 1 and 65535"},
		{"/entries/0", "is a URL", "/entries/0: is a URL"},
		{"", "is not valid JSON", "is not valid JSON"},
	} {
		for _, refused := range []*api.ResponseError{
			{Status: 422, Message: "first", Pointer: c.pointer, Problems: []document.Problem{{Pointer: c.pointer, Message: c.message}}},
			{Status: 422, Message: strings.TrimPrefix(c.pointer+": "+c.message, ": "), Pointer: c.pointer}, // from a gateway that sends no list
		} {
			if got := Explain(cmd, refused); got != c.want {
				t.Errorf("%s: %q, want %q", c.pointer, got, c.want)
			}
		}
	}
}

// TestExplainBoundsMistakes: a document with thousands of mistakes does not fill the terminal.
func TestExplainBoundsMistakes(t *testing.T) {
	t.Parallel()
	var ps document.Problems
	for i := range 1000 {
		ps.Add(document.Element("/allowed_domains", i), "is a URL")
	}
	text := Explain(&cobra.Command{}, ps.Err())
	if lines := strings.Split(text, "\n"); len(lines) != maxMistakes+2 || lines[0] != "1000 mistakes:" || lines[len(lines)-1] != "  and 950 more, which --json lists" {
		t.Error(text)
	}
}

// TestWriteErrorNamesTheFile: an error about a temporary file names the file that the user asked for, and the cause.
func TestWriteErrorNamesTheFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, missing := os.CreateTemp(filepath.Join(dir, "none"), ".x-")
	linked := os.Link(filepath.Join(dir, ".x-1"), filepath.Join(dir, "none", "x"))
	for err, want := range map[error]string{
		missing: "/none/x cannot be written: there is no directory " + dir + "/none; make it with `mkdir -p " + dir + "/none`",
		linked:  "/none/x cannot be written: there is no directory " + dir + "/none; make it with `mkdir -p " + dir + "/none`",
		&fs.PathError{Op: "open", Path: "/.x-1", Err: fs.ErrPermission}: "cannot be written: permission denied",
		errors.New("the gateway cut the copy off"):                      "the gateway cut the copy off",
	} {
		got := WriteError(filepath.Join(dir, "none", "x"), err).Error()
		if !strings.HasSuffix(got, want) || strings.Contains(got, ".x-") {
			t.Errorf("%v: %s", err, got)
		}
	}
}

// TestCount: only 1 has the singular.
func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 boxes", 1: "1 box", 2: "2 boxes"} {
		if got := Count(n, "box", "boxes"); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// TestInterruptedStatus: a command that a signal ended exits with 128 and its number, and prints nothing. Other errors stay.
func TestInterruptedStatus(t *testing.T) {
	for signal, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		ctx, stop := Interruptible()
		if err := AfterSignal(ctx, context.Canceled); !errors.Is(err, context.Canceled) {
			t.Errorf("before the signal: %v", err)
		}
		if err := syscall.Kill(os.Getpid(), signal); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		for _, err := range []error{ctx.Err(), context.Cause(ctx), fmt.Errorf("reading: %w", context.Cause(ctx))} {
			if got, ok := errors.AsType[CommandExit](AfterSignal(ctx, err)); !ok || got.Status != want || !errors.Is(err, context.Canceled) {
				t.Errorf("%v: %v", err, got)
			}
		}
		if other := errors.New("other"); AfterSignal(ctx, other) != other || AfterSignal(ctx, nil) != nil {
			t.Error("another error is hidden")
		}
		stop()
	}
}

// TestErrorsThatQuoteABox: an error of the gateway can quote a program of a box. It is printed without control characters, as text and as JSON.
func TestErrorsThatQuoteABox(t *testing.T) {
	t.Parallel()
	err := &api.ResponseError{Status: 422, Message: "git failed: \x1b[2J\u202e\nsecond line \u009b31m"}
	for _, asJSON := range []bool{false, true} {
		var out strings.Builder
		Report(&out, &cobra.Command{Use: "gateway"}, err, asJSON)
		got := out.String()
		if strings.ContainsAny(got, "\x1b\u202e\u009b") || !strings.Contains(got, "[2J") || !strings.Contains(got, "second line") {
			t.Errorf("%q", got)
		}
	}
}
