package host

import (
	"context"
	"fmt"
	"os"
	"time"

	"boxgate/launcher"
)

// A running gateway touches a file every second, so that the next one knows which flows of the kernel it has to report: those
// that began since. The file is in the run directory, which is in memory and is empty after a reboot, like the kernel's
// connection table.
const lastRunPace = time.Second

// lastRun returns when a gateway was last known to run; zero: never. Flows of about that time are reported twice rather than
// not at all.
func lastRun(runDir string) time.Time {
	info, err := os.Stat(launcher.LastRun(runDir))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime().Add(-2 * lastRunPace)
}

// noteRun touches the file until ctx ends.
func noteRun(ctx context.Context, runDir string) error {
	path := launcher.LastRun(runDir)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("the run directory: %w", err)
	}
	tick := time.NewTicker(lastRunPace)
	defer tick.Stop()
	for {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // at worst flows are reported twice
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// forgetRun removes the file, which would keep the directory, when there is no box whose flows could be reported.
func forgetRun(runDir string) { _ = os.Remove(launcher.LastRun(runDir)) }
