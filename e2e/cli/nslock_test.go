package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"boxgate/e2e/harness"
	"boxgate/host/nslock"
	"boxgate/internal/lab"
)

// TestNobodyElseKeepsAGatewayFromStarting: an unprivileged process in the gateway's network namespace can neither
// prevent its start nor answer commands instead of it, and a killed gateway does not prevent the start of the next one.
func TestNobodyElseKeepsAGatewayFromStarting(t *testing.T) {
	w := harness.NewStopped(t, lab.Options{})
	defer portInUse("unix", "@boxgate/gateway")(t, w)()
	var socket string
	must(t, w.Net.Gateway().Do(func() (err error) { socket, err = nslock.Socket(); return err }))
	must(t, w.Start(t.Context()))
	if _, err := os.Lstat(socket); err != nil {
		t.Error("there is no socket for commands:", err)
	}
	stranger := exec.Command("sh", "-c", "ls "+nslock.Dir+" || touch "+nslock.Dir+"/x || flock -n "+filepath.Join(nslock.Dir, "x")+" true")
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := stranger.CombinedOutput(); err == nil {
		t.Errorf("another user gets at the lock: %s", out)
	}
	w.Kill()
	must(t, w.Start(t.Context()), w.Stop())
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Error("a gateway that has stopped leaves its socket:", err)
	}
}
