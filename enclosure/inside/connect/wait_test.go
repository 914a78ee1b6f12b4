package connect

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAttackSocketBlocksAgain: a command makes its socket block while the supervisor connects it, to a server that never
// accepts.
func TestAttackSocketBlocksAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "full")
	server, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(server)
	if err := unix.Bind(server, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(server, 0); err != nil {
		t.Fatal(err)
	}
	waiting, err := net.Dial("unix", path) // fills the queue
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Shutdown(server, unix.SHUT_RDWR) // makes every connect fail
	address := append(append([]byte{unix.AF_UNIX, 0}, path...), 0)
	for _, flags := range []int{0, unix.O_NONBLOCK} {
		c := &call{socket: socket, family: unix.AF_UNIX}
		result := make(chan unix.Errno, 1)
		go func() {
			result <- c.withoutBlocking(flags, func() unix.Errno {
				if _, err := unix.FcntlInt(uintptr(socket), unix.F_SETFL, 0); err != nil {
					t.Error(err)
				}
				return c.connectOnce(address)
			})
		}()
		select {
		case errno := <-result:
			if errno != unix.EAGAIN {
				t.Errorf("with the flags %d: %v", flags, errno)
			}
		case <-time.After(time.Minute):
			t.Fatalf("with the flags %d the supervisor waits for the server", flags)
		}
	}
}
