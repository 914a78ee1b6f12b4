package launcher

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"boxgate/launcher/furnish"
	"boxgate/launcher/snapshot"
)

// captureLimits bound a capture, whatever the box has written: others wait for their turn, and the box cannot be used
// while it stands still.
type captureLimits struct {
	snapshot.Terms
	Whole time.Duration
}

var ofCaptures = captureLimits{snapshot.Terms{Entries: 2 << 20, Frozen: time.Minute, Without: path.Base(furnish.InitPath)}, 20 * time.Minute}

// errCaptureSlow is why a capture was given up.
var errCaptureSlow = errors.New("the snapshot took too long: the box has written too much, or the host is overloaded")

// runtimeMost bounds every call of the runtime. Some of them read files of the box, by which it can hold them up for ever: runc reads
// /etc/passwd and /etc/group, and waits for a writer if they are pipes.
const runtimeMost = time.Minute

// errRuntimeSlow is why a call of the runtime was given up.
var errRuntimeSlow = fmt.Errorf("the runtime was still at it after %v: the host is overloaded, or something in the box holds it up", runtimeMost)

// bounded returns a context for one call of the runtime.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, runtimeMost, errRuntimeSlow)
}

// within makes one call of the runtime.
func within(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
