package docker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"
)

// HoldCommand is the hidden command of the gateway that is the first in a container.
const HoldCommand = "hold"

// What a container that is made here has of the gateway.
const (
	holder    = "/.boxgate-hold/gateway" // the program itself, mounted
	readyFile = "/.boxgate-ready"        // written by the host once everything is in place
	link      = "eth0"                   // which the gateway brings up when its rules are there
)

// Hold waits until the container has its network and its certificates, and then becomes its command. Until then nothing of the image
// runs but its health check, which has no network.
func Hold(args []string) error {
	for !isReady() {
		time.Sleep(5 * time.Millisecond)
	}
	path, err := exec.LookPath(args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return fmt.Errorf("there is no program %q in the container", args[0])
	}
	return fmt.Errorf("%s cannot be started: %w", args[0], unix.Exec(path, args, os.Environ()))
}

func isReady() bool {
	if _, err := os.Stat(readyFile); err != nil {
		return false
	}
	i, err := net.InterfaceByName(link)
	return err == nil && i.Flags&net.FlagUp != 0
}
