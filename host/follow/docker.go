package follow

import (
	"context"
	"time"

	"boxgate/api"
	"boxgate/host/foreign"
)

// dockerRetry is how long after Docker went away it is asked again, at most.
const dockerRetry = 10 * time.Second

// followDocker looks at boxes when Docker says that something has happened to their containers. Whenever its events begin
// anew, all of them are looked at, since some may have been missed.
func (f *Follower) followDocker(ctx context.Context) {
	for wait := firstRetry; ctx.Err() == nil; {
		if !f.hasContainers() {
			select {
			case <-ctx.Done():
			case <-f.wake:
			}
			continue
		}
		_ = foreign.Events(ctx, time.Now(), func() {
			wait = firstRetry
			f.lookAtAll(isContainer)
		}, func(container string) {
			f.lookAtAll(func(s foreign.Sandbox) bool { return isContainer(s) && s.Container == container })
		})
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, dockerRetry)
	}
}

// isContainer reports whether Docker knows where a sandbox is.
func isContainer(s foreign.Sandbox) bool { return s.Kind == api.AttachDocker && s.Container != "" }

// hasContainers reports whether there is a box that is attached to a container of Docker.
func (f *Follower) hasContainers() bool {
	for _, id := range f.owner.Attached() {
		if s, _, ok := f.owner.Sandbox(id); ok && isContainer(s) {
			return true
		}
	}
	return false
}
