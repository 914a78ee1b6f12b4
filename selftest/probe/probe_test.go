package probe

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"testing"
)

// The probing process distinguishes refusals, silence and answers.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	serve := func(handle func(net.Conn)) netip.AddrPort {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go handle(c)
			}
		}()
		return ln.Addr().(*net.TCPAddr).AddrPort()
	}
	echo := serve(func(c net.Conn) {
		buf := make([]byte, 5)
		n, _ := c.Read(buf)
		_, _ = c.Write(buf[:n])
		_ = c.Close()
	})
	silent := serve(func(c net.Conn) { _, _ = c.Read(make([]byte, 99)); _, _ = c.Read(make([]byte, 1)) })
	closing := serve(func(c net.Conn) { _, _ = c.Read(make([]byte, 99)); _ = c.Close() })
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mute := pc.LocalAddr().(*net.UDPAddr).AddrPort()
	t.Cleanup(func() { pc.Close() })
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := gone.Addr().(*net.TCPAddr).AddrPort()
	gone.Close()
	word := [][]byte{[]byte("hello")}
	tasks := []Task{
		{ID: 0, Kind: TCP, To: echo, Data: word}, {ID: 1, Kind: TCP, To: silent, Data: word},
		{ID: 2, Kind: TCP, To: closing, Data: word}, {ID: 3, Kind: TCP, To: nobody, Data: word},
		{ID: 4, Kind: UDP, To: mute, Data: word}, {ID: 5, Kind: UDP, To: nobody, Data: word},
		{ID: 6, Kind: "no such kind", To: echo},
	}
	want := []Outcome{Answered, Open, Closed, Refused, Silent, Refused, Failed}
	for i, a := range perform(tasks, sendSocket) {
		if a.ID != i || a.Outcome != want[i] {
			t.Errorf("task %d: %+v, want %s", i, a, want[i])
		}
	}
}

// An invalid plan ends the process with an error, and without a report that could look clean.
func TestProbeRefusesWhatIsNoPlan(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := Serve(bytes.NewReader([]byte("{")), &out); err == nil || out.Len() != 0 {
		t.Errorf("%v %s", err, out.String())
	}
	in, err := json.Marshal(Plan{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(bytes.NewReader(in), &out); err != nil {
		t.Error(err)
	}
}
