package lab

import (
	"bytes"
	"context"
	"strings"
	"sync"
)

// SyncBuffer collects the output of a running command, so that other goroutines can wait for a part of it. The zero
// value is ready to use. Safe for concurrent use.
type SyncBuffer struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed and replaced by every write
}

// Write implements io.Writer.
func (b *SyncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	return b.buf.Write(p)
}

// String returns the output so far.
func (b *SyncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Await returns when the output contains part, or with ctx's error.
func (b *SyncBuffer) Await(ctx context.Context, part string) error {
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
