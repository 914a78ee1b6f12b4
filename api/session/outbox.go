package session

import (
	"context"
	"slices"
	"sync"
)

// Limits on the output buffered for the client: bytes, number of chunks and approximate size of each. At the limit, the
// command's writes block.
const (
	maxUnsent = 512 << 10
	maxChunks = 4096
	chunkSize = 16 << 10
)

// chunk is a piece of output. Offsets count both streams together.
type chunk struct {
	stream string
	data   []byte
	end    int64 // offset of its end
}

// outbox buffers the output of a command until the client has received it.
type outbox struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced on each change
	chunks  []chunk       // not yet confirmed by the client; oldest first
	written int64
	acked   int64 // confirmed by the client
	closed  bool  // further output is discarded
}

func newOutbox() *outbox { return &outbox{changed: make(chan struct{})} }

func (o *outbox) changeLocked() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// stream returns the writer for one of the command's streams.
func (o *outbox) stream(name string) writerFunc {
	return func(b []byte) (int, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for (o.written-o.acked >= maxUnsent || len(o.chunks) >= maxChunks) && !o.closed {
			wait := o.changed
			o.mu.Unlock()
			<-wait
			o.mu.Lock()
		}
		if !o.closed {
			o.addLocked(name, b)
			o.changeLocked()
		}
		return len(b), nil
	}
}

// addLocked appends output, to the last chunk if that is small. Copies of that chunk handed out earlier are not affected.
func (o *outbox) addLocked(stream string, b []byte) {
	o.written += int64(len(b))
	if n := len(o.chunks); n > 0 && o.chunks[n-1].stream == stream && len(o.chunks[n-1].data) < chunkSize {
		last := &o.chunks[n-1]
		last.data, last.end = append(last.data, b...), o.written
		return
	}
	o.chunks = append(o.chunks, chunk{stream, slices.Clone(b), o.written})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// close ends the output. Buffered output can still be read.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changeLocked()
}

// next waits for output after the offset. more is false at the end of the output.
func (o *outbox) next(ctx context.Context, after int64) (c chunk, more bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for _, c := range o.chunks {
			if c.end > after {
				c.data = c.data[max(0, int64(len(c.data))-(c.end-after)):]
				return c, true, nil
			}
		}
		if o.closed {
			return chunk{}, false, nil
		}
		wait := o.changed
		o.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			err = ctx.Err()
		}
		o.mu.Lock()
		if err != nil {
			return chunk{}, false, err
		}
	}
}

// acknowledge records that the client has received the output up to the offset, and reports whether that much was written.
func (o *outbox) acknowledge(upTo int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if upTo > o.written {
		return false
	}
	if upTo > o.acked {
		o.acked = upTo
		o.chunks = slices.DeleteFunc(o.chunks, func(c chunk) bool { return c.end <= upTo })
		o.changeLocked()
	}
	return true
}

// retains reports whether the output from the offset on is still available.
func (o *outbox) retains(offset int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return offset >= o.acked && offset <= o.written
}
