package process

import (
	"context"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"boxgate/policy"
)

// maxStreams bounds the abandoned streams of one box that are read and discarded.
const maxStreams = 64

// Background reads and discards the output that ended commands have left open to other processes of the box, because a
// write to a closed pipe would kill those. Each stream costs a descriptor and a goroutine, and one process of a box can
// hold open as many as there were commands, so the oldest are closed when there are too many.
//
// Reading costs the gateway CPU time, so the rate of a box is limited: after a burst its processes block on their output.
type Background struct {
	mu       sync.Mutex
	open     map[policy.BoxID][]*os.File    // guarded by mu; oldest first
	limiters map[policy.BoxID]*rate.Limiter // guarded by mu; of boxes with discarded output
}

// Limits of the discarded output of all commands of a box.
const (
	discardRate  = 4 << 20  // bytes per second
	discardBurst = 64 << 20 // bytes before the rate limit applies
)

// WaitDiscard blocks until n more bytes of a box may be discarded.
func (b *Background) WaitDiscard(id policy.BoxID, n int) {
	b.mu.Lock()
	if b.limiters == nil {
		b.limiters = map[policy.BoxID]*rate.Limiter{}
	}
	l := b.limiters[id]
	if l == nil {
		maps.DeleteFunc(b.limiters, func(_ policy.BoxID, l *rate.Limiter) bool { return l.Tokens() >= discardBurst }) // equivalent to a new one
		l = rate.NewLimiter(discardRate, discardBurst)
		b.limiters[id] = l
	}
	b.mu.Unlock()
	_ = l.WaitN(context.Background(), min(n, discardBurst))
}

// discardWriter is a writer that discards at the rate of its box.
type discardWriter struct {
	b  *Background
	id policy.BoxID
}

func (w discardWriter) Write(p []byte) (int, error) {
	w.b.WaitDiscard(w.id, len(p))
	return len(p), nil
}

// Discard takes over a stream and reads it to its end.
func (b *Background) Discard(id policy.BoxID, r *os.File) {
	_ = r.SetReadDeadline(time.Time{})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[policy.BoxID][]*os.File{}
	}
	list := append(b.open[id], r)
	if len(list) > maxStreams {
		list[0].Close()
		list = slices.Delete(list, 0, 1)
	}
	b.open[id] = list
	go func() {
		_, _ = io.Copy(discardWriter{b, id}, onlyReader{r}) // until its writers are gone, or it is closed by Discard or CloseAll
		r.Close()
		b.forget(id, r)
	}()
}

func (b *Background) forget(id policy.BoxID, r *os.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.open[id]
	if i := slices.Index(list, r); i >= 0 {
		list = slices.Delete(list, i, i+1)
		b.open[id] = list
	}
	if len(list) == 0 {
		delete(b.open, id)
	}
}

// CloseAll closes the remaining streams of a box.
func (b *Background) CloseAll(id policy.BoxID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.open[id] {
		r.Close()
	}
	delete(b.open, id)
	delete(b.limiters, id)
}
