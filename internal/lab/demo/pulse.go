package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// silence is the time without output after which a tour prints a sign of life.
const silence = 4 * time.Second

// pulse is a writer that prints a sign of life when nothing was written for a while. Safe for concurrent use.
type pulse struct {
	start time.Time

	mu      sync.Mutex
	to      io.Writer
	timer   *time.Timer
	stopped bool
}

// newPulse returns a pulse that writes to a writer. End it with stop.
func newPulse(to io.Writer) *pulse {
	p := &pulse{to: to, start: time.Now()}
	p.timer = time.AfterFunc(silence, p.showElapsed)
	return p
}

// elapsed returns the time since the start.
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

func (p *pulse) showElapsed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	fmt.Fprintf(p.to, "   … %.0f s\n", p.elapsed().Seconds())
	p.timer.Reset(silence)
}

// mute stops the signs of life until wake.
func (p *pulse) mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
}

func (p *pulse) unmute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = false
	p.timer.Reset(silence)
}

// stop ends the signs of life. Later writes still work.
func (p *pulse) stop() { p.mute() }
