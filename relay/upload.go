package relay

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"boxgate/internal/buffers"
	"boxgate/relay/h1"
)

// Server is the connection to a server as an upload needs it.
type Server interface {
	Write(b []byte) error
	// Abort interrupts reads and writes in progress. It never blocks.
	Abort()
}

// Source is a body that a client sends.
type Source interface {
	// Gather appends the received part of the body to the head, framed for the server, up to a limit. It returns the length of its
	// content, and whether the body ends there. More returns the rest.
	Gather(head []byte) (grown []byte, content int, whole bool, err error)
	// More waits for the next part of the body. It returns the part framed for the server, valid until the next call, the length of its
	// content, and whether the body ends there. It may use out.
	More(out *Output) (framed []byte, content int, last bool, err error)
	// Interrupt ends a call of More in progress, and every later one.
	Interrupt()
	// Panicked is called with the value of a panic in More.
	Panicked(v any)
}

// ErrFault is the outcome of an upload that a panic interrupted.
var ErrFault = errors.New("interrupted by a fault of the gateway")

// ErrUnwanted is returned by a [Source] whose client waits for a 100 that the server did not send before its answer.
var ErrUnwanted = errors.New("the server did not ask for the body")

// Upload sends the body of one request while the response is read. The zero value is an upload that is complete.
type Upload struct {
	Content int64 // taken from the client; not to be read while Running

	from    Source
	to      Server
	last    atomic.Int64  // when the server took a part, in Unix nanoseconds
	ending  atomic.Bool   // the last part is being sent, or was
	failing atomic.Bool   // it has failed, and the connection to the server was aborted for it
	stopped bool          // it was interrupted by Stop, not by the client
	refused bool          // the server took no more; its response may still be readable
	done    chan struct{} // nil when everything was sent with the head, or Stop has returned
	err     error         // valid once done is closed
}

// Reset prepares for another request.
func (u *Upload) Reset() {
	u.Content, u.from, u.to, u.stopped, u.refused, u.done, u.err = 0, nil, nil, false, false, nil, nil
	u.last.Store(0)
	u.ending.Store(false)
	u.failing.Store(false)
}

// Start sends the rest of a body in a new goroutine, so that a response can be relayed before the body has ended.
func (u *Upload) Start(from Source, to Server) {
	u.from, u.to, u.done = from, to, make(chan struct{})
	go u.run()
}

func (u *Upload) run() {
	defer close(u.done)
	defer func() {
		if v := recover(); v != nil {
			u.err = ErrFault
			u.to.Abort()
			u.from.Panicked(v)
		}
	}()
	if u.err = u.send(); u.err != nil && !u.refused {
		u.failing.Store(true)
		u.to.Abort() // the client has gone or stopped: the server must not take a part of the body for the whole
	}
}

func (u *Upload) send() error {
	var out Output
	defer out.Give()
	for {
		framed, n, last, err := u.from.More(&out)
		u.Content += int64(n)
		if err != nil {
			u.refused = errors.Is(err, ErrUnwanted)
			return err
		}
		u.ending.Store(last)
		if len(framed) > 0 {
			if err := u.to.Write(framed); err != nil {
				u.refused = true
				return err
			}
			u.last.Store(time.Now().UnixNano())
		}
		if last {
			return nil
		}
	}
}

// Running reports whether the upload was started and not stopped.
func (u *Upload) Running() bool { return u.done != nil }

// Idle reports whether no upload is reading from the client.
func (u *Upload) Idle() bool {
	if u.done == nil {
		return true
	}
	select {
	case <-u.done:
		return true
	default:
		return false
	}
}

// Progress returns when the server last accepted part of the body, or the zero time.
func (u *Upload) Progress() time.Time {
	if last := u.last.Load(); last > 0 {
		return time.Unix(0, last)
	}
	return time.Time{}
}

const (
	// endTime is how long Finished waits for the last part of a body from the client.
	endTime = 10 * time.Millisecond
	// lastTime is how long it waits for the goroutine that sends the last part. On a busy machine, that goroutine may run long after the
	// server has taken the part and responded. A server that does not take it gets its response to the client only then.
	lastTime = time.Second
)

// Finished reports whether the whole body was sent. It waits briefly: a server may respond to the last byte before the goroutine
// that sent it is done.
func (u *Upload) Finished() bool { return u.finished(endTime, lastTime) }

func (u *Upload) finished(end, last time.Duration) bool {
	if u.done == nil {
		return true
	}
	u.await(end)
	if u.ending.Load() {
		u.await(last)
	}
	return u.Idle() && u.err == nil
}

// await waits until the upload has stopped, for a limited time.
func (u *Upload) await(limit time.Duration) {
	if u.Idle() {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-u.done:
	case <-timer.C:
	}
}

// Stop ends an upload whose outcome no longer matters, and waits until it has released its source.
func (u *Upload) Stop() {
	if u.done == nil {
		return
	}
	select {
	case <-u.done:
	default:
		u.stopped = !u.failing.Load()
		u.to.Abort()
		u.from.Interrupt()
		<-u.done
	}
	u.done = nil
}

// Err returns the error of a stopped upload, whoever is to blame for it.
func (u *Upload) Err() error { return u.err }

// Fault returns the error of a stopped upload that failed because of the client: a *[h1.Error], [ErrClientGone], or another error of
// the source. It is nil if the server refused more of the body, or Stop interrupted the upload.
func (u *Upload) Fault() error {
	var malformed *h1.Error
	switch {
	case u.err == nil || u.refused:
		return nil
	case errors.As(u.err, &malformed):
		return malformed
	case u.stopped:
		return nil
	case errors.Is(u.err, io.ErrUnexpectedEOF):
		return ErrClientGone
	}
	return u.err
}

// Inspector is asked about the body of a request over HTTP/1.x before any of it is sent.
type Inspector interface {
	// Look is shown content. An error keeps it back.
	Look(content []byte) error
	// End is shown the trailers at the end. An error keeps that back.
	End(trailers []h1.Field) error
	// AppendLast appends the last chunk for the server.
	AppendLast(out []byte, trailers []h1.Field) []byte
	// Await is called before the client is waited for.
	Await()
}

// Body is the body of a request over HTTP/1.x, as it arrives from a client.
type Body struct {
	h1.Body
	in  *h1.Reader
	by  Inspector
	dry bool // all that has arrived is taken
}

// Begin begins the body behind a head.
func (b *Body) Begin(in *h1.Reader, f h1.Framing, by Inspector) {
	b.Body.Begin(f, false)
	b.in, b.by, b.dry = in, by, false
}

// Gather is that of [Source].
func (b *Body) Gather(out []byte) (grown []byte, content int, last bool, err error) {
	for first := true; first || len(out) < buffers.OutFlush; first = false { // a head may be as large as that
		part, err := b.part(&last)
		if err != nil {
			return out, content, false, err
		}
		content += len(part)
		if !b.Chunked() {
			out = append(out, part...)
		} else if out = h1.AppendChunk(out, part); last {
			out = b.by.AppendLast(out, b.Trailers)
		}
		if last || b.dry {
			return out, content, last, nil
		}
	}
	return out, content, false, nil
}

// part consumes received content, at most to the end of a chunk, and has it inspected.
func (b *Body) part(last *bool) ([]byte, error) {
	part, n, done, err := b.Next(b.in.Bytes())
	if err == nil {
		err = b.by.Look(part)
	}
	if err == nil && done {
		err = b.by.End(b.Trailers)
	}
	if err != nil {
		return nil, err
	}
	b.in.Take(n)
	b.dry, *last = n == 0 || len(b.in.Bytes()) == 0, done
	return part, nil
}

// More is that of [Source]. Content of known length is not copied.
func (b *Body) More(out *Output) (framed []byte, content int, last bool, err error) {
	if b.dry {
		b.by.Await()
		if err := b.in.Fill(); err != nil {
			return nil, 0, false, h1.NoEOF(err)
		}
	}
	if b.Chunked() {
		out.Buf, content, last, err = b.Gather(out.Take())
		return out.Buf, content, last, err
	}
	part, err := b.part(&last)
	return part, len(part), last, err
}
