package host

import (
	"context"
	"sync"
)

// loops are what looks after the boxes and the host in the background. Safe for concurrent use.
type loops struct {
	stopped context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newLoops() *loops {
	l := &loops{}
	l.stopped, l.cancel = context.WithCancel(context.Background())
	return l
}

// context returns one that ends with ctx or when stop is called.
func (l *loops) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	release := context.AfterFunc(l.stopped, cancel)
	return ctx, func() { release(); cancel() }
}

// stop ends the loops and waits for them.
func (l *loops) stop() {
	l.cancel()
	l.running.Wait()
}
