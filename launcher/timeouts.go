package launcher

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"boxgate/launcher/rootfs"
	"boxgate/launcher/snapshot"
)

// captureLimits bound a capture, however much the box has written: captures queue up, and the box cannot be used while it
// is frozen.
type captureLimits struct {
	snapshot.Terms
	Total time.Duration
}

var defaultCaptureLimits = captureLimits{snapshot.Terms{Entries: 2 << 20, Frozen: time.Minute, Exclude: path.Base(rootfs.InitPath)}, 20 * time.Minute}

// errCaptureSlow is the cause when a capture exceeds captureLimits.Total.
var errCaptureSlow = errors.New("the snapshot took too long: the box has written too much, or the host is overloaded")

// runtimeTimeout bounds every call of the runtime. A box can stall some of them for ever: runc reads the box's /etc/passwd and
// /etc/group, and blocks until a writer appears if they are pipes.
const runtimeTimeout = time.Minute

// errRuntimeSlow is the cause when a call of the runtime exceeds runtimeTimeout.
var errRuntimeSlow = fmt.Errorf("the runtime did not finish within %v: the host is overloaded, or a file in the box blocks it", runtimeTimeout)

// withRuntimeTimeout returns a context for one call of the runtime, limited to runtimeTimeout.
func withRuntimeTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, runtimeTimeout, errRuntimeSlow)
}

// callRuntime makes one call of the runtime, limited to runtimeTimeout.
func callRuntime(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := withRuntimeTimeout(ctx)
	defer cancel()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
