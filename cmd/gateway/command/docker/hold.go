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

// HoldCommand is the hidden command of the gateway that starts as the first process of a container.
const HoldCommand = "hold"

// Paths and the interface that the gateway uses in a container created here.
const (
	holdProgram = "/.boxgate-hold/gateway" // the mounted gateway program
	readyFile   = "/.boxgate-ready-"       // followed by the container's token; created by the host once everything is ready
	link        = "eth0"                   // set up by the gateway once its rules are active
)

// Hold waits until the container has its network and certificates, then executes the container's command. args is the
// container's token followed by that command. Until then no code of the image runs except its health check, which has no
// network yet.
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

// isReady reports whether the file exists and the network is up. The file name contains a random token for this
// container, so no image can contain it, not even one committed from another container.
func isReady(file string) bool {
	if _, err := os.Lstat(file); err != nil {
		return false
	}
	i, err := net.InterfaceByName(link)
	return err == nil && i.Flags&net.FlagUp != 0
}
