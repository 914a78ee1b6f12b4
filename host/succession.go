package host

import (
	"context"
	"os"
	"sync"
	"sync/atomic"

	"boxgate/host/handover"
)

// Start starts a process of the gateway that takes the place of this one, with one end of a socket pair, which it closes. The
// program is the one that is installed now, or that of this process.
type Start func(theirs *os.File, ownProgram bool) (*os.Process, error)

// succession is how another process takes the place of this one. The zero value is ready.
type succession struct {
	mu       sync.Mutex    // one at a time
	lent     bool          // the store and the kernel rules are not this process's any more; guarded by mu
	replaced chan struct{} // closed when another process serves
	failed   chan error    // takes one error, after which this process cannot go on
	orders   *handover.Conn
	cut      chan struct{} // closed when nobody says any more what must not go on

	stopLeases func() // set once lent; guarded by mu

	stopping atomic.Bool // this process is told to end
}

func newSuccession() *succession {
	return &succession{replaced: make(chan struct{}), failed: make(chan error, 1), cut: make(chan struct{})}
}

// Control does what `gateway reload` and `gateway upgrade` ask for, which is one word, and returns what to answer.
type Control func(ctx context.Context, word string) (any, error)
