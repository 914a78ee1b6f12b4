package boxfs

import (
	"context"
	"errors"
	"io"
	"time"

	"boxgate/launcher/boxfs/sftpserver"
)

// OpenSFTP starts a session whose process serves SFTP, see package sftpserver. Of its methods, only [Session.Serve], Pid, Ended and Close
// may be called.
func OpenSFTP(ctx context.Context, cfg Config) (*Session, error) {
	s, err := openAs(ctx, cfg, sftpserver.Name)
	if err == nil {
		s.closeTimeout = sftpCloseTimeout
	}
	return s, err
}

// sftpCloseTimeout is how long the process may take to end after its streams have. It has nothing to clean up; a call that hangs, such as
// opening a FIFO, would hold one of the box's few places for longer.
const sftpCloseTimeout = 200 * time.Millisecond

// Serve moves the bytes of a client of SFTP until the client, the process or the session's context has ended. The error is nil if the
// client has ended it.
func (s *Session) Serve(client io.ReadWriter) error {
	answered := make(chan error, 1)
	go func() {
		_, err := io.Copy(onlyWriter{client}, s.out)
		answered <- err
	}()
	sent := make(chan error, 1)
	go func() { // reads on until the client has ended, even if the process is gone
		_, err := io.Copy(s.in, onlyReader{client})
		sent <- err
		s.in.Close() // the process answers the requests it has received, and ends
	}()
	err := <-answered
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	select {
	case <-sent: // the client has ended first
		return err
	default:
		return s.broken(errors.Join(err, io.ErrUnexpectedEOF))
	}
}

// onlyReader and onlyWriter hide the methods with which io.Copy would bypass the other side's.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
