package sandboxwatch

import (
	"context"
	"time"

	"boxgate/api"
	"boxgate/host/sandboxns"
)

// dockerRetry is the maximum delay before Docker is contacted again after it went away.
const dockerRetry = 10 * time.Second

// followDocker looks at boxes when Docker reports events of their containers. Whenever the event stream restarts, it
// looks at all of them, since events may have been missed.
func (f *Follower) followDocker(ctx context.Context) {
	for wait := firstRetry; ctx.Err() == nil; {
		if !f.hasContainers() {
			select {
			case <-ctx.Done():
			case <-f.wake:
			}
			continue
		}
		_ = sandboxns.Events(ctx, time.Now(), func() {
			wait = firstRetry
			f.lookAtAll(isContainer)
		}, func(container string) {
			f.lookAtAll(func(s sandboxns.Sandbox) bool { return isContainer(s) && s.Container == container })
		})
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, dockerRetry)
	}
}

// isContainer reports whether Docker knows the location of a sandbox.
func isContainer(s sandboxns.Sandbox) bool { return s.Kind == api.AttachDocker && s.Container != "" }

// hasContainers reports whether any box is attached to a Docker container.
func (f *Follower) hasContainers() bool {
	for _, id := range f.owner.Attached() {
		if s, _, ok := f.owner.Sandbox(id); ok && isContainer(s) {
			return true
		}
	}
	return false
}
