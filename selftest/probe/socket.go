package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxAnswer bounds the reported bytes of an answer.
const maxAnswer = 2048

// sendSocket runs a task with ordinary sockets.
func sendSocket(t Task) Answer {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, string(t.Kind), t.To.String())
	if err != nil {
		return failure(err, Failed)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(wait))
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true) // each piece is sent as its own segment
	}
	for _, piece := range t.Data {
		if _, err := conn.Write(piece); err != nil {
			return failure(err, Closed)
		}
	}
	buf := make([]byte, maxAnswer)
	n, err := conn.Read(buf)
	switch {
	case n > 0:
		return Answer{Outcome: Answered, Data: buf[:n]}
	case t.Kind == UDP:
		return failure(err, Failed)
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return Answer{Outcome: Closed}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Answer{Outcome: Open}
	default:
		return failure(err, Closed)
	}
}

// refusals are the errors that a reset or an ICMP error causes.
var refusals = []error{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.EACCES, unix.EPERM, unix.ECONNRESET, unix.ENOPROTOOPT, unix.EHOSTDOWN}

// failure classifies an error: refusals and timeouts are ordinary outcomes.
func failure(err error, otherwise Outcome) Answer {
	var timeout net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return Answer{Outcome: Silent}
	}
	if otherwise == Failed {
		for _, r := range refusals {
			if errors.Is(err, r) {
				return Answer{Outcome: Refused}
			}
		}
	}
	return Answer{Outcome: otherwise, Error: err.Error()}
}
