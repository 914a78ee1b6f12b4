package proxy

import "sync/atomic"

// maxIdleWorkers is the maximum number of idle goroutines of a crew.
const maxIdleWorkers = 64

// workerPool runs connection handlers until they return or hand over their connection. First bytes and handshakes grow a stack to
// several times its initial size, so finished goroutines are reused for the next connections.
type workerPool struct {
	jobs        chan func()     // unbuffered: only idle goroutines receive
	stop        <-chan struct{} // closed when no more jobs come
	idleWorkers atomic.Int64
}

// run runs a job in an idle or new goroutine, and returns immediately.
func (c *workerPool) run(job func()) {
	select {
	case c.jobs <- job:
	default:
		go c.work(job)
	}
}

func (c *workerPool) work(job func()) {
	for job != nil {
		job()
		job = c.next()
	}
}

// next returns the next job, or nil if the goroutine should exit.
func (c *workerPool) next() (job func()) {
	defer c.idleWorkers.Add(-1)
	if c.idleWorkers.Add(1) > maxIdleWorkers {
		return nil
	}
	select {
	case job = <-c.jobs:
	case <-c.stop:
	}
	return job
}
