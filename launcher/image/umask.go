package image

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// imageUmask preserves the modes that the build of an image sets. The service itself runs with a stricter umask.
const imageUmask = 0o022

// underImageUmask calls build on a thread with the umask for images, which programs started from it inherit. The umask of
// the process does not change.
func underImageUmask(build func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			done <- fmt.Errorf("a umask of its own: %w", err)
			return
		}
		unix.Umask(imageUmask)
		done <- build()
	}()
	return <-done
}
