package session

import (
	"context"
	"io"
	"sync"
)

// maxUntaken is how much input is kept for a command that does not read it. A client that sends more waits.
const maxUntaken = 1 << 20

// inbox keeps the input of a command until it is read. Signals need not wait behind it.
type inbox struct {
	mu    sync.Mutex
	moved sync.Cond
	buf   []byte
	taken int64 // how much has come from the client
	ended bool  // the client sends no more
	gone  bool  // the command reads no more
}

func newInbox() *inbox {
	i := &inbox{}
	i.moved.L = &i.mu
	return i
}

// put takes input of the client, and reports how much has come so far. It waits while there is too much, unless ctx ends.
func (i *inbox) put(ctx context.Context, b []byte) int64 {
	defer context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.moved.Broadcast()
	})()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.taken += int64(len(b))
	if i.ended || i.gone {
		return i.taken
	}
	i.buf = append(i.buf, b...)
	i.moved.Broadcast()
	for len(i.buf) > maxUntaken && !i.gone && ctx.Err() == nil {
		i.moved.Wait()
	}
	return i.taken
}

// count is how much input has come.
func (i *inbox) count() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.taken
}

// end ends the input after what has come.
func (i *inbox) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	i.moved.Broadcast()
}

// discard ends it for a command that has ended.
func (i *inbox) discard() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.gone, i.buf = true, nil
	i.moved.Broadcast()
}

// Read implements [io.Reader] for the command.
func (i *inbox) Read(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.buf) == 0 {
		if i.ended || i.gone {
			return 0, io.EOF
		}
		i.moved.Wait()
	}
	n := copy(p, i.buf)
	i.buf = i.buf[n:]
	i.moved.Broadcast()
	return n, nil
}
