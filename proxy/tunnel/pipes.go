package tunnel

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// pipesIdle is the maximum number of unused pipes kept open.
const pipesIdle = 32

// pipePool pools the pipes through which splice(2) moves bytes. Each takes two descriptors, so their number is limited in
// total, and for each box to a quarter of that, because unread data of a box occupies its pipes. Tunnels without a pipe
// copy. Safe for concurrent use.
type pipePool struct {
	max int

	mu   sync.Mutex
	idle []*pipe
	lent int
}

type pipe struct{ r, w int }

// get returns a pipe and counts it in held, the number of pipes of the box. It returns nil if no pipe is available.
func (p *pipePool) get(held *atomic.Int64) *pipe {
	if held.Add(1) > int64((p.max+3)/4) {
		held.Add(-1)
		return nil
	}
	p.mu.Lock()
	if p.lent >= p.max {
		p.mu.Unlock()
		held.Add(-1)
		return nil
	}
	p.lent++
	if n := len(p.idle); n > 0 {
		got := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return got
	}
	p.mu.Unlock()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil { // out of descriptors
		p.mu.Lock()
		p.lent--
		p.mu.Unlock()
		held.Add(-1)
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, maxSplice) // a smaller one works as well
	return &pipe{fds[0], fds[1]}
}

// release returns a pipe to the pool, or closes it if it is not empty.
func (p *pipePool) release(held *atomic.Int64, got *pipe, empty bool) {
	held.Add(-1)
	p.mu.Lock()
	p.lent--
	keep := empty && len(p.idle) < min(pipesIdle, p.max)
	if keep {
		p.idle = append(p.idle, got)
	}
	p.mu.Unlock()
	if !keep {
		_ = unix.Close(got.r)
		_ = unix.Close(got.w)
	}
}

// close closes the unused pipes.
func (p *pipePool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.idle {
		_ = unix.Close(k.r)
		_ = unix.Close(k.w)
	}
	p.idle, p.max = nil, 0
}
