package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// silence is how long a tour says nothing before it says that it goes on.
const silence = 4 * time.Second

// pulse is a writer that says something whenever nothing was written for a while. Safe for concurrent use.
type pulse struct {
	start time.Time

	mu      sync.Mutex
	to      io.Writer
	timer   *time.Timer
	stopped bool
}

// newPulse begins to write to a writer. End it with stop.
func newPulse(to io.Writer) *pulse {
	p := &pulse{to: to, start: time.Now()}
	p.timer = time.AfterFunc(silence, p.beat)
	return p
}

// elapsed is how long it has been going on.
func (p *pulse) elapsed() time.Duration { return time.Since(p.start) }

// Write implements io.Writer.
func (p *pulse) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.timer.Reset(silence)
	}
	return p.to.Write(b)
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	fmt.Fprintf(p.to, "   … %.0f s\n", p.elapsed().Seconds())
	p.timer.Reset(silence)
}

// rest lets it be silent, until wake.
func (p *pulse) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
}

func (p *pulse) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = false
	p.timer.Reset(silence)
}

// stop ends it. What is written later is written all the same.
func (p *pulse) stop() { p.rest() }
