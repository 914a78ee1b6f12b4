package selftest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxAnswer is how much of an answer is reported.
const maxAnswer = 2048

// sendSocket does a task with the sockets that any program has.
func sendSocket(t task) answer {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, string(t.Kind), t.To.String())
	if err != nil {
		return failure(err, outFailed)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait))
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true) // each piece is to be a segment of its own
	}
	for _, piece := range t.Data {
		if _, err := conn.Write(piece); err != nil {
			return failure(err, outClosed)
		}
	}
	buf := make([]byte, maxAnswer)
	n, err := conn.Read(buf)
	switch {
	case n > 0:
		return answer{Outcome: outAnswer, Data: buf[:n]}
	case t.Kind == overUDP:
		return failure(err, outFailed)
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return answer{Outcome: outClosed}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return answer{Outcome: outOpen}
	default:
		return failure(err, outClosed)
	}
}

// refusals are the errors that a reset or an ICMP error causes.
var refusals = []error{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.EACCES, unix.EPERM, unix.ECONNRESET, unix.ENOPROTOOPT, unix.EHOSTDOWN}

// failure sorts an error: what a refusal or silence causes is an outcome like any other.
func failure(err error, otherwise outcome) answer {
	var timeout net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return answer{Outcome: outSilent}
	}
	if otherwise == outFailed {
		for _, r := range refusals {
			if errors.Is(err, r) {
				return answer{Outcome: outRefused}
			}
		}
	}
	return answer{Outcome: otherwise, Error: err.Error()}
}
