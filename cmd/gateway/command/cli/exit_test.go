package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"boxgate/api"
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
