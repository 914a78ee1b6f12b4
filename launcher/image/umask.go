package image

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// imageUmask lets the modes of an image be those that its build asks for. The service runs with a umask that leaves nothing to others.
const imageUmask = 0o022

// underImageUmask calls build on a thread whose umask is that of images, and so is that of the programs that it starts. The
// umask of the process stays.
func underImageUmask(build func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			done <- fmt.Errorf("a umask of its own: %w", err)
			return
		}
		unix.Umask(imageUmask)
		done <- build()
	}()
	return <-done
}
