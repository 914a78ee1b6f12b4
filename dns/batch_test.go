package dns

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAttackAnswersThatCannotBeSent checks that boxes whose source address cannot be answered lose only their own
// answers. The other answers of the batch are sent, each once.
func TestAttackAnswersThatCannotBeSent(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		pc, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		sock, err := newSocket(pc)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sock.close() }()
		box, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer box.Close()
		to := box.LocalAddr().(*net.UDPAddr).AddrPort()
		nowhere := netip.AddrPortFrom(to.Addr(), 0) // a source port that only a raw socket can have
		if err := unix.Sendto(sock.fd, []byte("x"), unix.MSG_DONTWAIT, sockaddr(nowhere)); err == nil {
			t.Fatalf("something was sent to %v", nowhere)
		}
		b := newBatch(sock)
		const answers = 3 * batchSize
		for i := range answers {
			at := to
			if i%3 == 0 || i%5 == 0 { // first, last, and adjacent
				at = nowhere
			}
			b.add(fmt.Append(b.replyBuffer(), i), at)
		}
		b.flush()
		buf := make([]byte, udpSize)
		for i := range answers {
			if i%3 == 0 || i%5 == 0 {
				continue
			}
			_ = box.SetReadDeadline(time.Now().Add(time.Minute))
			if n, _, err := box.ReadFrom(buf); err != nil || string(buf[:n]) != fmt.Sprint(i) {
				t.Fatalf("%s: answer %d: %q, %v", address, i, buf[:n], err)
			}
		}
		_ = box.SetReadDeadline(time.Now().Add(time.Millisecond))
		if n, _, err := box.ReadFrom(buf); err == nil {
			t.Errorf("%s: %q was sent twice", address, buf[:n])
		}
	}
}
