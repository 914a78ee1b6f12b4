package docker

import (
	"crypto/rand"
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
	readyFile = "/.boxgate-ready-"       // and the container's token: written by the host once everything is in place
	link      = "eth0"                   // which the gateway brings up when its rules are there
)

// Hold waits until the container has its network and its certificates, and then becomes its command, which follows the container's
// token in args. Until then nothing of the image runs but its health check, which has no network.
func Hold(args []string) error {
	token, args := args[0], args[1:]
	if len(token) != len(rand.Text()) {
		return errors.New("this container was made by another version of the gateway: make it again with gateway docker run")
	}
	ready := readyFile + token
	for !isReady(ready) {
		time.Sleep(5 * time.Millisecond)
	}
	path, err := exec.LookPath(args[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return fmt.Errorf("there is no program %q in the container", args[0])
	}
	return fmt.Errorf("%s cannot be started: %w", args[0], unix.Exec(path, args, os.Environ()))
}

// isReady reports whether a file is there and the network is up. The name of the file has a token that was made up for the container:
// an image cannot have it, also one that was made of another container.
func isReady(file string) bool {
	if _, err := os.Lstat(file); err != nil {
		return false
	}
	i, err := net.InterfaceByName(link)
	return err == nil && i.Flags&net.FlagUp != 0
}
