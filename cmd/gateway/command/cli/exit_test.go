package cli

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// TestReport: each kind of error has its exit status and text, also when another error wraps it.
func TestReport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
		text   string
	}{
		{nil, ExitOK, ""},
		{errors.New("refused"), ExitFailed, "gateway: refused\n"},
		{Usagef("%q is not a port", "x"), ExitUsage, "gateway: \"x\" is not a port\nSee `gateway --help`.\n"},
		{fmt.Errorf("--policy: %w", UsageError(errors.New("not JSON"))), ExitUsage, "gateway: --policy: not JSON\nSee `gateway --help`.\n"},
		{StatusError{ExitUntestable, errors.New("cannot be tested")}, ExitUntestable, "gateway: cannot be tested\n"},
		{CommandExit{7}, 7, ""},
	} {
		var out bytes.Buffer
		if status := Report(&out, c.err); status != c.status || out.String() != c.text {
			t.Errorf("%v: status %d, %q; want %d, %q", c.err, status, out.String(), c.status, c.text)
		}
	}
}
