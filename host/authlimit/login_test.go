package authlimit

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"boxgate/internal/nightly"
)

// socketVariable has the socket that the test's own program connects to, as a client.
const socketVariable = "BOXGATE_TEST_LOGIN_SOCKET"

// TestLoginOfAPeer: of a client that is root, the credentials name the user who logged in, as long as the client runs.
func TestLoginOfAPeer(t *testing.T) {
	if socket := os.Getenv(socketVariable); socket != "" {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(c) // until the test has seen the credentials
		return
	}
	nightly.Root(t)
	if _, err := os.Stat("/proc/self/loginuid"); err != nil {
		t.Skip("this kernel does not record logins")
	}
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for login, want := range map[string]int{"4711": 4711, "4294967295": 0, "0": 0} {
		client := exec.CommandContext(t.Context(), "sh", "-c", `echo "$1" >/proc/self/loginuid; exec "$0" -test.run='^TestLoginOfAPeer$'`, os.Args[0], login)
		client.Env = append(os.Environ(), socketVariable+"="+ln.Addr().String())
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got, err := credentialsOf(c.(*net.UnixConn))
		if err != nil || got.UID != 0 || got.Login != want {
			t.Errorf("login %s: %+v, %v", login, got, err)
		}
		defer c.Close()
		if err := c.(*net.UnixConn).CloseWrite(); err != nil {
			t.Error(err)
		}
		if err := client.Wait(); err != nil {
			t.Error(err)
		}
		if got, _ := credentialsOf(c.(*net.UnixConn)); got.Login != 0 {
			t.Errorf("login %s: a client that has ended has the login %d", login, got.Login)
		}
	}
}
