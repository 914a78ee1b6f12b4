package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
)

// syncBuffer collects the output of a command that still runs, for somebody who waits for a part of it. The zero value
// is ready to use. Safe for concurrent use.
type syncBuffer struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed and replaced by every write
}

// Write implements io.Writer.
func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	return b.buf.Write(p)
}

// String returns what has been written so far.
func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// await returns when the output holds part, or with ctx's error.
func (b *syncBuffer) await(ctx context.Context, part string) error {
	for {
		b.mu.Lock()
		found := strings.Contains(b.buf.String(), part)
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
