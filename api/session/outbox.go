package session

import (
	"context"
	"slices"
	"sync"
)

// How much output is kept for the client, and in how many pieces of about which size. The command that writes more waits.
const (
	maxUnsent = 512 << 10
	maxChunks = 4096
	chunkSize = 16 << 10
)

// chunk is a piece of output. Both streams are counted together.
type chunk struct {
	stream string
	data   []byte
	end    int64 // how much output there is up to its end
}

// outbox keeps the output of a command from when it is written until the client has it.
type outbox struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each change
	chunks  []chunk       // what the client may lack; oldest first
	written int64
	freed   int64 // what the client has for certain
	closed  bool  // nothing more comes, or is taken
}

func newOutbox() *outbox { return &outbox{changed: make(chan struct{})} }

func (o *outbox) changeLocked() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// stream is the writer of one of the command's streams.
func (o *outbox) stream(name string) writerFunc {
	return func(b []byte) (int, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for (o.written-o.freed >= maxUnsent || len(o.chunks) >= maxChunks) && !o.closed {
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

// addLocked adds output, to the last chunk if that is small. Who has that chunk already sees no more of it than before.
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

// close ends the output. What is there can still be read.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.changeLocked()
}

// next waits for output after an offset. more is false when there will be none.
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

// free notes that the client has the output up to an offset, and reports whether there is that much.
func (o *outbox) free(upTo int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if upTo > o.written {
		return false
	}
	if upTo > o.freed {
		o.freed = upTo
		o.chunks = slices.DeleteFunc(o.chunks, func(c chunk) bool { return c.end <= upTo })
		o.changeLocked()
	}
	return true
}

// has reports whether output from an offset on can still be sent.
func (o *outbox) has(offset int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return offset >= o.freed && offset <= o.written
}
