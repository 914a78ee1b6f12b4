package fault

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/policy"
	"boxgate/policy/name"
)

// trafficWorld returns a running world that obeys [harness.World.Arm], with a box that has a secret.
func trafficWorld(t *testing.T) (*harness.World, *harness.Intruder) {
	t.Helper()
	w := harness.NewStopped(t, lab.Options{})
	w.Env = []string{harness.FaultsFile + "=" + w.FaultsPath()}
	w.StartIfStopped()
	return w, w.Intrude(w.SecretBox())
}

// asker returns a function that makes one request per call on a connection.
func asker(c net.Conn, host string) func() error {
	answers := bufio.NewReader(c)
	return func() error {
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		if _, err := fmt.Fprintf(c, "GET /again HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
			return err
		}
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
}

// Handling a connection panics, then a request over HTTP/2, then a DNS query. Each ends with reason internal. Other
// connections of the same box continue, and the text of the panic is never shown.
func TestAttackPanicInOneConnection(t *testing.T) {
	t.Parallel()
	w, in := trafficWorld(t)
	to := netip.AddrPortFrom(in.Resolve("api.example.com", "ip4"), 443)
	beside := in.TLS(in.Dial(to), "api.example.com", "http/1.1")
	ask := asker(beside, "api.example.com")
	over2 := in.TLS(in.Dial(to), "api.example.com", "h2")
	//lint:ignore SA1019 the connection is the test's own
	client, err := new(http2.Transport).NewClientConn(over2)
	if err != nil {
		t.Fatal(err)
	}
	get2 := func(path string) error {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://api.example.com"+path, nil)
		if err != nil {
			return err
		}
		res, err := client.RoundTrip(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	fine := func(when string) {
		t.Helper()
		if err := ask(); err != nil {
			t.Errorf("%s: a connection beside it: %v", when, err)
		}
		if err := get2("/beside"); err != nil {
			t.Errorf("%s: a stream beside it: %v", when, err)
		}
	}
	internal := func(stage policy.Stage) {
		t.Helper()
		w.Event(in.Box, func(e audit.Event) bool {
			return e.Stage == stage && e.Verdict == policy.Deny && e.Reason == name.ReasonInternal
		})
	}
	fine("before")

	w.Arm(harness.FaultPanic, "proxy: first bytes read")
	if err := in.Fetch(to, "api.example.com"); err == nil {
		t.Error("the connection outlived the panic")
	}
	w.MustReachStep("first bytes")
	internal(policy.StageConn)
	fine("a connection has died")

	w.Arm(harness.FaultPanic, "proxy: request read")
	if err := in.Fetch(to, "api.example.com"); err == nil {
		t.Error("the request outlived the panic")
	}
	w.MustReachStep("request")
	fine("a request has died")
	w.Arm(harness.FaultPanic, "proxy: request read")
	if err := get2("/dies"); err == nil {
		t.Error("the stream outlived the panic")
	}
	w.MustReachStep("stream")
	internal(policy.StageHTTP)
	fine("a stream has died")

	w.Arm(harness.FaultPanic, "dns: query read")
	out, _ := w.Sh(in.Box, "python3 -c 'import socket; print(socket.getaddrinfo(\"www.example.com\", 80))' 2>&1")
	w.MustReachStep("query " + out)
	internal(policy.StageDNS)
	fine("a query has died")
	if n := len(in.Requests("api.example.com", "/dies")); n != 0 {
		t.Errorf("%d requests of dead streams were sent on", n)
	}
	if text := w.ReadLog(); strings.Contains(text, harness.TestSecret) || strings.Contains(text, "a panic that a test asked for") {
		t.Error("the text of the panic is in the log")
	}
}

// One box has used up the gateway's file descriptors. Open connections of another box continue. With free descriptors
// everything works again, and no denied connection got through.
func TestAttackFileDescriptorsUsedUp(t *testing.T) {
	t.Parallel()
	w := harness.SharedCaptured(t)
	other := w.Intrude(w.SecretBox())
	to := netip.AddrPortFrom(other.Resolve("api.example.com", "ip4"), 443)
	ask := asker(other.TLS(other.Dial(to), "api.example.com", "http/1.1"), "api.example.com")
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	r := w.Raid(makeNarrow(w))
	s := besiege(w, harness.AttackerAt(101))
	pid := w.Process.Process.Pid
	var normal unix.Rlimit
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &normal)
	}
	few := unix.Rlimit{Cur: uint64(len(open) + 12), Max: normal.Max}
	if err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	greedy := make([]io.Closer, 0, 60)
	for range 60 {
		if c, err := r.Dial("tcp", to); err == nil {
			_, _ = c.Write(s.hello[0])
			greedy = append(greedy, c)
		}
	}
	w.Until("the gateway says that it has none left", func() bool { return strings.Contains(w.ReadLog(), "too many open files") })
	for range 20 {
		if err := ask(); err != nil {
			t.Fatalf("the other box: %v", err)
		}
	}
	select {
	case <-w.Exited:
		t.Fatal("the gateway has ended")
	default:
	}
	for _, c := range greedy {
		c.Close()
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &normal, nil); err != nil {
		t.Fatal(err)
	}
	w.Until("new connections come about again", func() bool { return other.Fetch(to, "api.example.com") == nil })
	w.SetPolicy(r.Box, wide)
	if !agrees(r, "with descriptors again") {
		t.Error("the policy is not in force")
	}
	s.assertHolds()
}
