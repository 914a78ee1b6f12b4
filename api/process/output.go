package process

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/quota"
)

// Bounds of the output that is kept for readers. A reader at its bound blocks the command, unless another one reads faster.
const (
	maxReaders = 16
	maxUnread  = 256 << 10 // bytes of one reader
	maxChunks  = 1024      // chunks of one reader
	chunkSize  = 16 << 10  // smaller chunks of one stream are joined
	readerCost = 2 * maxUnread
)

// slowTime is how long a reader that does not read may hold up a command that others read.
const slowTime = 5 * time.Second

// ErrSlow ends the reading of a reader that held up others.
var ErrSlow = api.Errorf(api.ErrLimit, "this reader did not take the output of the command while others did; attach again")

// The streams of a command. One with a terminal has only [Stdout].
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Chunk is a piece of output.
type Chunk struct {
	Stream string
	Data   []byte // not to be changed
}

// output distributes the output of a command to its readers. Without a reader, output is discarded.
type output struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced on each change
	readers map[*Output]bool
	ended   bool // there is no more output
	discard bool // output is discarded, because the command is being killed
}

func newOutput() *output {
	return &output{changed: make(chan struct{}), readers: map[*Output]bool{}}
}

func (o *output) changeLocked() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// Output is the output of a process for one reader. Its methods must not be called concurrently.
type Output struct {
	from    *output
	release func()  // returns its memory to the quota
	chunks  []Chunk // guarded by from.mu, as are the fields below
	size    int
	slow    bool
}

// attach adds a reader of the output from now on. Its memory is charged to the scope of ctx until it is closed.
func (o *output) attach(ctx context.Context) (*Output, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.readers) >= maxReaders {
		return nil, api.Errorf(api.ErrLimit, "the command has %d readers of its output, which is the limit", maxReaders)
	}
	scope := quota.ScopeOf(ctx)
	if err := scope.Acquire(quota.Memory, readerCost); err != nil {
		return nil, err
	}
	r := &Output{from: o, release: sync.OnceFunc(func() { scope.Release(quota.Memory, readerCost) })}
	o.readers[r] = true
	return r, nil
}

// Next waits for output. It returns [io.EOF] after the last piece, once the result of the process is known, and the cause of ctx if that
// ends first.
func (r *Output) Next(ctx context.Context) (Chunk, error) {
	o := r.from
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		switch {
		case r.slow:
			return Chunk{}, ErrSlow
		case ctx.Err() != nil && !o.ended: // also while there is always output
			return Chunk{}, context.Cause(ctx)
		case len(r.chunks) > 0:
			c := r.chunks[0]
			r.chunks = r.chunks[1:]
			if r.size -= len(c.Data); len(r.chunks) == 0 {
				r.chunks = nil
			}
			o.changeLocked()
			return c, nil
		case o.ended:
			return Chunk{}, io.EOF
		}
		wait := o.changed
		o.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		o.mu.Lock()
	}
}

// Close removes the reader. Further calls have no effect.
func (r *Output) Close() {
	r.from.mu.Lock()
	defer r.from.mu.Unlock()
	delete(r.from.readers, r)
	r.chunks, r.size = nil, 0
	r.release()
	r.from.changeLocked()
}

func (r *Output) fullLocked() bool { return r.size >= maxUnread || len(r.chunks) >= maxChunks }

func (r *Output) addLocked(stream string, b []byte) {
	r.size += len(b)
	if n := len(r.chunks); n > 0 && r.chunks[n-1].Stream == stream && len(r.chunks[n-1].Data) < chunkSize {
		r.chunks[n-1].Data = append(r.chunks[n-1].Data, b...)
		return
	}
	r.chunks = append(r.chunks, Chunk{stream, slices.Clone(b)})
}

// stream returns the writer for one of the command's streams. It never fails.
func (o *output) stream(name string) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		var patience *time.Timer
		for !o.discard && o.anyFullLocked() {
			if patience == nil {
				patience = time.NewTimer(slowTime)
				defer patience.Stop()
			}
			o.waitLocked(patience)
		}
		if o.discard || len(b) == 0 {
			return len(b), nil
		}
		for r := range o.readers {
			r.addLocked(name, b)
		}
		o.changeLocked()
		return len(b), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (o *output) anyFullLocked() bool {
	for r := range o.readers {
		if r.fullLocked() {
			return true
		}
	}
	return false
}

// waitLocked waits until a reader has read or has gone. Once patience has run out, it ends the full readers if another one has room.
func (o *output) waitLocked(patience *time.Timer) {
	wait, over := o.changed, false
	o.mu.Unlock()
	select {
	case <-wait:
	case <-patience.C:
		over = true
	}
	o.mu.Lock()
	if !over {
		return
	}
	patience.Reset(slowTime)
	var full []*Output
	for r := range o.readers {
		if r.fullLocked() {
			full = append(full, r)
		}
	}
	if len(full) == len(o.readers) {
		return
	}
	for _, r := range full {
		delete(o.readers, r)
		r.chunks, r.slow = nil, true
	}
	o.changeLocked()
}

// drop discards further output, so that a command that is being killed is not blocked.
func (o *output) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.discard = true
	o.changeLocked()
}

// end marks the end of the output.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.discard = true, true
	o.changeLocked()
}

// maxInput bounds the input that is kept for a command that does not read it.
const maxInput = 64 << 10

// ErrNoInput is returned for input to a command whose input is closed.
var ErrNoInput = errors.New("its input is closed")

// input keeps the input of a command until it is read.
type input struct {
	turn chan struct{} // held by the call that writes

	mu      sync.Mutex
	changed chan struct{} // closed and replaced on each change
	buf     []byte
	closed  bool // there is no more input
	over    bool // the command reads no more
}

func newInput(open bool) *input {
	return &input{turn: make(chan struct{}, 1), changed: make(chan struct{}), closed: !open}
}

func (i *input) changeLocked() {
	close(i.changed)
	i.changed = make(chan struct{})
}

// Read implements [io.Reader] for the command.
func (i *input) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.buf) == 0 {
		if i.closed || i.over {
			return 0, io.EOF
		}
		wait := i.changed
		i.mu.Unlock()
		<-wait
		i.mu.Lock()
	}
	n := copy(p, i.buf)
	if i.buf = i.buf[n:]; len(i.buf) == 0 {
		i.buf = nil
	}
	i.changeLocked()
	return n, nil
}

// write hands input over to the command. It waits for the command to read until ctx ends; the input of calls is not mixed.
func (i *input) write(ctx context.Context, b []byte) error {
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for {
		switch {
		case i.closed || i.over:
			return api.Errorf(api.ErrConflict, "the command takes no input: %w", ErrNoInput)
		case ctx.Err() != nil: // also while there is room
			return context.Cause(ctx)
		}
		if n := min(len(b), maxInput-len(i.buf)); n > 0 {
			i.buf = append(i.buf, b[:n]...)
			b = b[n:]
			i.changeLocked()
		}
		if len(b) == 0 {
			return nil
		}
		wait := i.changed
		i.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		i.mu.Lock()
	}
}

// close ends the input once all written bytes are read. Waiting calls fail.
func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.changeLocked()
}

// end discards the input of a command that has ended.
func (i *input) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over, i.buf = true, nil
	i.changeLocked()
}
