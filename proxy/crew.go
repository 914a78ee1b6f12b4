package proxy

import "sync/atomic"

// idleCrew is the most goroutines of a crew that wait for work.
const idleCrew = 64

// crew runs the handlers of connections until these are done or handed over. First bytes and handshakes grow a stack to
// several times its initial size, so the goroutines that have done one wait for the next.
type crew struct {
	jobs chan func()     // unbuffered: only idle goroutines receive
	stop <-chan struct{} // closed when no more jobs come
	idle atomic.Int64
}

// run runs a job in a goroutine, and returns at once.
func (c *crew) run(job func()) {
	select {
	case c.jobs <- job:
	default:
		go c.work(job)
	}
}

func (c *crew) work(job func()) {
	for job != nil {
		job()
		job = c.next()
	}
}

// next returns the next job, or nil if there is none for this goroutine.
func (c *crew) next() (job func()) {
	defer c.idle.Add(-1)
	if c.idle.Add(1) > idleCrew {
		return nil
	}
	select {
	case job = <-c.jobs:
	case <-c.stop:
	}
	return job
}
