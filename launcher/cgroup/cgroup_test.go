package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"boxgate/internal/nightly"
)

// TestClearThawsCommands: a command's group that was left frozen does not keep its box from being removed.
func TestClearThawsCommands(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	root, file, on := "/sys/fs/cgroup/freezer", "freezer.state", "FROZEN"
	if _, err := os.Stat(root); err != nil {
		root, file, on = "/sys/fs/cgroup", "cgroup.freeze", "1"
	}
	group := Group(fmt.Sprintf("boxgate-test-%d", os.Getpid()))
	below := filepath.Join(root, string(group), "run-x")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "1000")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = sleep.Wait(); close(ended) }()
	for name, text := range map[string]string{"cgroup.procs": strconv.Itoa(sleep.Process.Pid), file: on} {
		if err := os.WriteFile(filepath.Join(below, name), []byte(text), 0); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := group.KillAndRemove(ctx); err != nil {
		t.Error(err)
		_ = os.WriteFile(filepath.Join(below, file), []byte(map[string]string{"1": "0", "FROZEN": "THAWED"}[on]), 0)
	}
	<-ended
}
