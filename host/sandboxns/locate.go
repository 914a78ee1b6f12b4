package sandboxns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"boxgate/api"
)

// Sandbox identifies the sandbox that a box is attached to.
type Sandbox struct {
	Kind, Ref string
	Container string // Docker container ID; "" if it is not a container
	Pin       string // path of the pinned namespace; "" while the box is not attached
}

// Place is the current location of a sandbox.
type Place struct {
	// Process is a process in the pinned namespace, nil if unknown. While it runs, the sandbox is unchanged.
	Process *os.File
	// Moved is another namespace that the sandbox runs in now; its NS is nil if the sandbox has not moved.
	Moved Found
	// Ended is the reason why the sandbox has lost its network namespace; "" if it has one.
	Ended string
}

// Locate finds the current place of a sandbox. Containers are found by ID, which is never reused, not by name. An error
// means that the place is unknown at the moment.
func Locate(ctx context.Context, s Sandbox) (Place, error) {
	if s.Kind == api.AttachDocker && s.Container != "" {
		return locateContainer(ctx, s)
	}
	if s.Pin == "" {
		return Place{}, nil // a path or process ID that reappears may belong to another sandbox
	}
	hint := 0
	ended := "no process runs in its network namespace"
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

// locateContainer is Locate for a Docker container. While Docker does not respond, it looks for processes in the
// namespace instead.
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
