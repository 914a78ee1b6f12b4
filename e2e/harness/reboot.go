package harness

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/launcher"
)

// Reboot simulates a restart of the host: it kills the gateway and removes every container, mount, pinned namespace and
// kernel rule, and the run directory. Files on disk stay, and so do the claims of user IDs, which concurrent tests
// share. The gateway is not started.
func (w *World) Reboot() {
	w.T.Helper()
	w.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), w.patience())
	defer cancel()
	run := lab.RunDir(w.Dir)
	cfg, err := config.Load(w.Config, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	l, err := launcher.New(launcher.Config{StateDir: filepath.Join(w.Dir, "state"), RunDir: run, Runtime: cfg.Launcher.Runtime})
	if err != nil {
		w.T.Fatal(err)
	}
	boxes, err := l.List(ctx)
	for _, box := range boxes {
		err = errors.Join(err, l.Stop(ctx, box.ID))
	}
	_ = unix.Unmount(filepath.Join(run, "runtime", "null-netns"), unix.MNT_DETACH) // mounted by gVisor
	if err = errors.Join(err, os.RemoveAll(run)); err != nil {
		w.T.Fatalf("the host could not be restarted: %v", err)
	}
	if _, err := w.Net.Gateway().Run(ctx, "nft", "flush", "ruleset"); err != nil {
		w.T.Fatal(err)
	}
	for _, family := range []string{"-4", "-6"} { // without the gateway's changes
		if _, err := w.Net.Gateway().Run(ctx, "sh", "-c", "for p in 1 2 3 4 5 6 7 8 9; do ip "+family+" rule add pref 32765 lookup local 2>/dev/null; ip "+family+" rule del pref $p; done; ip "+family+" route flush table 45253; true"); err != nil {
			w.T.Fatal(err)
		}
	}
}
