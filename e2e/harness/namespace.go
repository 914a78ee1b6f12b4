package harness

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNamespace runs f in a network namespace. The sockets it opens stay there.
func inNamespace(pin *os.File, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if err := unix.Setns(int(pin.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
