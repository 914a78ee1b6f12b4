package command

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"boxgate/cmd/gateway/command/cli"
)

// TestSnapshotIsWaitedFor: `gateway box snapshot` waits until the snapshot is no longer being created, and fails if it is not made. Other
// snapshots of the box do not count.
func TestSnapshotIsWaitedFor(t *testing.T) {
	for end, want := range map[string]string{
		`{"id":"snap_1","box_id":"b1","status":"ready"}`:                        "snap_1\n",
		`{"id":"snap_1","box_id":"b1","status":"error","error":"disk is full"}`: "snapshot snap_1 failed: disk is full",
		`{"id":"snap_2","box_id":"b1","status":"ready"}`:                        "snapshot snap_1 was deleted before it was ready",
	} {
		var polls atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			const creating = `{"id":"snap_1","box_id":"b1","status":"creating"}`
			switch {
			case r.Method == http.MethodPost:
				fmt.Fprint(w, creating)
			case polls.Add(1) < 3:
				fmt.Fprintf(w, `{"snapshots":[{"id":"snap_0","box_id":"b1","status":"ready"},%s]}`, creating)
			default:
				fmt.Fprintf(w, `{"snapshots":[%s]}`, end)
			}
		}))
		t.Cleanup(srv.Close)
		t.Setenv("BOXGATE_API_KEY", "key")
		t.Setenv("BOXGATE_ADMIN", srv.URL)
		out, code := runCommandLine(t, "box", "snapshot", "demo")
		if !strings.Contains(out, want) || polls.Load() != 3 || (code == cli.ExitOK) != strings.HasPrefix(want, "snap_") {
			t.Errorf("%s: exit %d after %d polls: %s", end, code, polls.Load(), out)
		}
		if out, code := runCommandLine(t, "box", "snapshot", "demo", "--no-wait"); code != cli.ExitOK || out != "snap_1\n" || polls.Load() != 3 {
			t.Errorf("--no-wait: exit %d: %s", code, out)
		}
	}
}
