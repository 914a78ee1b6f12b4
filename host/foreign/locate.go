package foreign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"boxgate/api"
)

// Sandbox is what a box is attached to.
type Sandbox struct {
	Kind, Ref string
	Container string // the ID of the Docker container; "" if it is not known to be one
	Pin       string // where the namespace that the box is attached to is pinned; "" while it is attached to none
}

// Place is where a sandbox is now.
type Place struct {
	// Process runs in the namespace that is pinned: while it does, nothing has changed. nil if none is known.
	Process *os.File
	// Moved is another namespace that the sandbox runs in now; its NS is nil if there is none.
	Moved Found
	// Ended says why the sandbox has no network namespace any more; "" if it has one.
	Ended string
}

// Locate says where a sandbox is now. A container is found by its ID, which no other ever gets, not by its name. An error
// means that this cannot be known at present.
func Locate(ctx context.Context, s Sandbox) (Place, error) {
	if s.Kind == api.AttachDocker && s.Container != "" {
		return locateContainer(ctx, s)
	}
	if s.Pin == "" {
		return Place{}, nil // a path or process ID that exists again may be anybody's
	}
	hint := 0
	ended := "nothing runs in its network namespace any more"
	switch s.Kind {
	case api.AttachPID:
		hint, _ = strconv.Atoi(s.Ref)
	case api.AttachNetNS:
		if Same(s.Pin, s.Ref) {
			return Place{}, nil
		}
		ended = fmt.Sprintf("%s does not name its network namespace any more", s.Ref)
	}
	if p := inhabitant(s.Pin, hint); p != nil {
		return Place{Process: p}, nil
	}
	return Place{Ended: ended}, nil
}

// locateContainer is Locate for a container of Docker. While Docker cannot be asked, what runs in the namespace counts.
func locateContainer(ctx context.Context, s Sandbox) (Place, error) {
	c, err := inspect(ctx, s.Container)
	switch {
	case errors.Is(err, errNoContainer):
		return Place{Ended: "its container was removed"}, nil
	case err != nil && s.Pin == "":
		return Place{}, err
	case err != nil:
		if p := inhabitant(s.Pin, 0); p != nil {
			return Place{Process: p}, nil
		}
		return Place{Ended: "its container has ended, and Docker does not answer"}, nil
	case c.ID != s.Container:
		return Place{}, fmt.Errorf("asked for container %s, Docker answered about %q", s.Container, c.ID)
	case c.PID == 0:
		return Place{Ended: "its container is stopped; the box is attached again when it starts"}, nil
	}
	if s.Pin != "" && Same(s.Pin, netNSOf(c.PID)) {
		return Place{Process: inhabitant(s.Pin, c.PID)}, nil
	}
	found, err := openContainer(ctx, s.Container)
	if err == nil && s.Pin != "" && Same(s.Pin, PathOf(found.NS)) {
		return Place{Process: inhabitant(s.Pin, c.PID)}, found.NS.Close()
	}
	return Place{Moved: found}, err
}
