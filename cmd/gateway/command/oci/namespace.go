package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// WaitCommand is the hidden command whose process waits in a new network namespace until the container's processes are in it.
const WaitCommand = "oci-wait"

// Wait is the process of [WaitCommand]. It brings the loopback interface up, as runtimes do in a namespace of their own, and ends with
// its input.
func Wait(in io.Reader, out io.Writer) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("the loopback interface: %w", err)
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

// holder is a process that keeps a network namespace until the processes of the container are in it.
type holder struct {
	cmd *exec.Cmd
	end io.Closer

	joined []*os.File // namespaces of other containers that the container joins
}

// keep keeps a file open until the holder is closed, and returns its path for the runtime.
func (h *holder) keep(f *os.File) string {
	h.joined = append(h.joined, f)
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
}

// newHolder makes a network namespace.
func newHolder(ctx context.Context) (*holder, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", WaitCommand)
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	cmd.Env = []string{} // configuration of the gateway is not for it
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("a network namespace cannot be made: %w", err)
	}
	h := &holder{cmd: cmd, end: in}
	if line, err := io.ReadAll(io.LimitReader(out, int64(len("ready\n")))); err != nil || string(line) != "ready\n" {
		h.close()
		return nil, errors.New("a network namespace cannot be made: its process has ended")
	}
	return h, nil
}

// path is that of the namespace.
func (h *holder) path() string { return fmt.Sprintf("/proc/%d/ns/net", h.cmd.Process.Pid) }

func (h *holder) close() {
	h.end.Close()
	for _, f := range h.joined {
		f.Close()
	}
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
}

// checkLinks returns an error if the network namespace at a path has an interface besides the gateway's and loopback: an engine that
// connects a created container to a network of its own would give it another way out.
func checkLinks(path string) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends in that namespace
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		links, err := netlink.LinkList()
		var others []string
		for _, l := range links {
			if a := l.Attrs(); a.Flags&net.FlagLoopback == 0 && (a.Flags&net.FlagUp != 0 || l.Type() == "veth") {
				others = append(others, a.Name)
			}
		}
		if err == nil && len(others) != 1 {
			err = fmt.Errorf("the container has the interfaces %q, and the gateway must be its only way out: start it without a network of the engine (--network none)", others)
		}
		done <- err
	}()
	return <-done
}

// Docker connects a container to its networks by a hook of the runtime, which passes the container's network namespace to the daemon.
// The gateway passes an empty one. Docker's interface ends there.

// dockerHook is the argument of the hook.
const dockerHook = "libnetwork-setkey"

// hookTimeout bounds how long the daemon may take.
const hookTimeout = time.Minute

// takeDockerHooks removes Docker's hooks from the configuration, and returns them.
func (b *bundle) takeDockerHooks() (hooks []specs.Hook) {
	if b.spec.Hooks == nil {
		return nil
	}
	take := func(list []specs.Hook) []specs.Hook {
		return slices.DeleteFunc(list, func(h specs.Hook) bool {
			found := len(h.Args) > 0 && strings.HasSuffix(h.Args[0], dockerHook)
			if found {
				hooks = append(hooks, h)
			}
			return found
		})
	}
	b.spec.Hooks.Prestart = take(b.spec.Hooks.Prestart) //nolint:staticcheck // Docker uses it
	b.spec.Hooks.CreateRuntime = take(b.spec.Hooks.CreateRuntime)
	return hooks
}

// hasNetworkHooks reports whether programs of the engine run between the creation of the namespaces and the container's first instruction.
func (b *bundle) hasNetworkHooks() bool {
	h := b.spec.Hooks
	return h != nil && len(h.Prestart)+len(h.CreateRuntime)+len(h.CreateContainer) > 0 //nolint:staticcheck // engines still use Prestart
}

// divert runs Docker's hooks for an empty network namespace. The daemon keeps it until the container is removed.
func divert(ctx context.Context, id, bundleDir string, version string, hooks []specs.Hook) error {
	if len(hooks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	empty, err := newHolder(ctx)
	if err != nil {
		return err
	}
	defer empty.close()
	state, err := json.Marshal(specs.State{Version: version, ID: id, Status: specs.StateCreating, Pid: empty.cmd.Process.Pid, Bundle: bundleDir})
	if err != nil {
		return err
	}
	for _, h := range hooks {
		cmd := exec.CommandContext(ctx, h.Path)
		cmd.Args, cmd.Env, cmd.Stdin = h.Args, h.Env, bytes.NewReader(state)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("the hook of Docker's networks: %w: %.500s", err, out)
		}
	}
	return nil
}
