package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	// quietTime is how long a command may wait before it shows that, and the time between two lines about it in a pipe.
	quietTime = 3 * time.Second
	// redrawTime is the time between two texts on a terminal, where each replaces the one before.
	redrawTime = time.Second
)

// Progress shows that a command is waiting: on a terminal in one line that is updated and finally cleared, elsewhere in a line every 3
// seconds. The first one comes after 3 seconds. Safe for concurrent use.
type Progress struct {
	out      io.Writer
	terminal bool
	text     func() string // of the current step
	quiet    time.Duration // quietTime, except in tests

	mu      sync.Mutex
	waits   int       // callers of Begin whose end was not called; guarded by mu
	started time.Time // first Begin; guarded by mu
	line    time.Time // of the last text; guarded by mu
	shown   bool      // a text is on the terminal; guarded by mu
	changed chan struct{}
}

// NewProgress returns a Progress that writes to out. text is called for each line, from another goroutine.
func NewProgress(out io.Writer, text func() string) *Progress {
	f, ok := out.(*os.File)
	return &Progress{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), text: text, quiet: quietTime}
}

// Begin begins to wait. The caller must call end, before it writes anything itself.
func (p *Progress) Begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.started.IsZero() {
		p.started, p.line = now, now
	}
	if p.waits++; p.waits == 1 {
		p.changed = make(chan struct{})
		go p.run(p.changed)
	}
	return sync.OnceFunc(p.end)
}

func (p *Progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits--; p.waits > 0 {
		return
	}
	close(p.changed)
	if p.shown {
		fmt.Fprint(p.out, "\r\033[K")
		p.shown = false
	}
}

// run writes texts until ended is closed.
func (p *Progress) run(ended <-chan struct{}) {
	tick := time.NewTicker(min(redrawTime, p.quiet/4))
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case now := <-tick.C:
			p.write(ended, now)
		}
	}
}

func (p *Progress) write(ended <-chan struct{}, now time.Time) {
	text := p.text()
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-ended:
		return
	default:
	}
	// A line comes early rather than late: the next tick may be late on a busy host.
	due := now.Sub(p.line) >= p.quiet-redrawTime/2
	if p.terminal {
		due = p.shown || now.Sub(p.started) >= p.quiet
	}
	if !due {
		return
	}
	p.line = now
	text = fmt.Sprintf("%s, %.0f s", text, now.Sub(p.started).Seconds())
	if p.terminal {
		p.shown = true
		fmt.Fprint(p.out, "\r\033[K"+text)
	} else {
		fmt.Fprintln(p.out, text)
	}
}
