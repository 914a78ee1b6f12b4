package systemd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSocketsAreKeptUnderTheirNames: the service manager receives the socket itself, under a name that it accepts.
func TestSocketsAreKeptUnderTheirNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := Keep("proxy ::1", ln.(*net.TCPListener)); err != nil {
		t.Fatal(err)
	}
	state, rights := make([]byte, 1024), make([]byte, 1024)
	n, r, _, _, err := manager.ReadMsgUnix(state, rights)
	if want := "FDSTORE=1\nFDPOLL=0\nFDNAME=boxgate-proxy+%3A%3A1"; err != nil || string(state[:n]) != want {
		t.Fatalf("%q %v, want %q", state[:n], err, want)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:r])
	if err != nil || len(messages) != 1 {
		t.Fatal(messages, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatal(fds, err)
	}
	f := os.NewFile(uintptr(fds[0]), "kept")
	defer f.Close()
	same, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer same.Close()
	if same.Addr().String() != ln.Addr().String() {
		t.Errorf("%v, want %v", same.Addr(), ln.Addr())
	}
	if err := Drop("proxy ::1"); err != nil {
		t.Fatal(err)
	}
	if n, err = manager.Read(state); err != nil || string(state[:n]) != "FDSTOREREMOVE=1\nFDNAME=boxgate-proxy+%3A%3A1" {
		t.Errorf("%q %v", state[:n], err)
	}
}

// TestNothingIsSaidWithoutAServiceManager: without a service manager all functions are no-ops.
func TestNothingIsSaidWithoutAServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := Keep(strings.Repeat("x", longestName), ln.(*net.TCPListener)); err != nil {
		t.Error(err)
	}
	if err := Ready(); err != nil {
		t.Error(err)
	}
}

// TestAManagerThatReadsNothingIsNotWaitedFor: messages to a manager that does not read are lost, and the gateway
// continues.
func TestAManagerThatReadsNothingIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", path)
	ended := make(chan error, 1)
	go func() {
		for {
			if err := send([]byte("STATUS=nobody reads this"), nil, 100*time.Millisecond); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if !strings.Contains(err.Error(), "is not being read") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the send blocked")
	}
	_ = manager.Close() // ends blocked sends
}

// TestKept: the process gets exactly its own sockets, and child processes inherit neither descriptors nor variables.
func TestKept(t *testing.T) {
	if os.Getenv("SYSTEMD_TEST_CHILD") != "" {
		reportKept(t)
		return
	}
	for _, tt := range []struct{ pid, names, want string }{
		{"$$", "boxgate-proxy+%3A%3A1:boxgate-one:http.socket", "[one proxy ::1] 2 open 0 inherited, variables: []"},
		{"$$", "boxgate-one:boxgate-one:boxgate-%zz", "[one] 1 open 0 inherited, variables: []"},
		{"$$", "", "[] 0 open 0 inherited, variables: []"},
		{"1", "boxgate-one:boxgate-two:boxgate-three", "[] 3 open 3 inherited, variables: []"}, // their owner is unknown
	} {
		cmd := exec.Command("sh", "-c", `LISTEN_PID=`+tt.pid+` exec "$0" -test.run '^TestKept$' -test.v`, os.Args[0])
		cmd.Env = append(os.Environ(), "SYSTEMD_TEST_CHILD=1", "LISTEN_FDS=3", "LISTEN_FDNAMES="+tt.names)
		for range 3 {
			f, err := os.CreateTemp(t.TempDir(), "kept")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "has "+tt.want+"\n") {
			t.Errorf("%+v: %v\n%s", tt, err, out)
		}
	}
}

func reportKept(t *testing.T) {
	files := Kept()
	var names, variables []string
	for name, f := range files {
		names = append(names, name)
		defer f.Close()
	}
	slices.Sort(names)
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "LISTEN_") {
			variables = append(variables, kv)
		}
	}
	open := 0
	for fd := firstFD; fd < firstFD+3; fd++ {
		if target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && strings.Contains(target, "kept") {
			open++
		}
	}
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", `exit $(ls -l /proc/self/fd | grep -c kept)`}, nil)
	var status unix.WaitStatus
	if err == nil {
		_, err = unix.Wait4(pid, &status, 0, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("has %v %d open %d inherited, variables: %v\n", names, open, status.ExitStatus(), variables)
}

// Every name survives the round trip, and the service manager accepts its encoding.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"proxy ::1", "DNS over UDP fd42:b0c5::1 7", "ingress.https :443", "100% +x", "\x00\n"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		written := storedName(name)
		if strings.ContainsFunc(written, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) {
			t.Errorf("%q is encoded as %q", name, written)
		}
		if back, ok := nameOf(written); !ok || back != name {
			t.Errorf("%q is decoded as %q, %v", name, back, ok)
		}
		_, _ = nameOf(name)
	})
}
