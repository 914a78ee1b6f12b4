package handover

import (
	"net"
	"os"
	"slices"
	"testing"
)

// pair returns both ends of a socket pair.
func pair(t testing.TB) (ours, theirs *Conn) {
	t.Helper()
	ours, f, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err = NewConn(f); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// Sockets arrive under their names, and work.
func TestSocketsArriveUnderTheirNames(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	go func() { _ = ours.Greet(Hello{Sockets: []string{"one"}, DNSPort: 53}, []int{int(f.Fd())}) }()
	h, files, err := theirs.Greeted()
	if err != nil || h.DNSPort != 53 || len(files) != 1 || !slices.Equal(h.Sockets, []string{"one"}) {
		t.Fatal(h, files, err)
	}
	defer files["one"].Close()
	same, err := net.FileListener(files["one"])
	if err != nil {
		t.Fatal(err)
	}
	defer same.Close()
	if same.Addr().String() != ln.Addr().String() {
		t.Errorf("%v, want %v", same.Addr(), ln.Addr())
	}
}

// Both ends report the process that made them.
func TestPeer(t *testing.T) {
	t.Parallel()
	ours, theirs := pair(t)
	for _, c := range []*Conn{ours, theirs} {
		if pid, err := c.Peer(); err != nil || pid != os.Getpid() {
			t.Errorf("%d, %v, want %d", pid, err, os.Getpid())
		}
	}
}

// Whatever the input, there are as many sockets as names.
func FuzzGreeted(f *testing.F) {
	for _, s := range []string{"", "\n", "\n{}", "\n{\"sockets\":[\"one\"]}", "\n{\"sockets\":1}", "\n[", "x{\"fixed\":{}}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := pair(t)
		if _, err := ours.unix.Write(data); err != nil {
			t.Fatal(err)
		}
		_ = ours.Close()
		h, files, err := theirs.Greeted()
		if err == nil && len(h.Sockets) != len(files) {
			t.Errorf("%d names for %d sockets", len(h.Sockets), len(files))
		}
		for _, file := range files {
			file.Close()
		}
		_ = theirs.Expect(Prepared)
	})
}

// The end of the connection, a failure and an unexpected message cause different errors.
func TestExpect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		say  []Message
		want string
	}{
		{[]Message{{Kind: Prepared}}, ""}, {[]Message{{Kind: Failed, Error: "no port"}}, "no port"},
		{[]Message{{Kind: Serving}}, `unexpected message "serving", expected "prepared"`}, {nil, "it ended"},
	} {
		ours, theirs := pair(t)
		for _, m := range tt.say {
			if err := ours.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		_ = ours.Close()
		err := theirs.Expect(Prepared)
		if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
			t.Errorf("%+v: %v, want %q", tt.say, err, tt.want)
		}
	}
}
