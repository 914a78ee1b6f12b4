package image

import (
	"fmt"
	"sync"
)

// meter reports the progress of a download, with one line per 5 percent.
type meter struct {
	report func(string)
	total  int64

	mu    sync.Mutex
	done  int64 // guarded by mu
	lines int64 // guarded by mu; 5 percent steps reported
}

func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	if now := m.done * 20 / max(m.total, 1); now > m.lines {
		m.lines = now
		m.report(fmt.Sprintf("pulled %s of %s", megabytes(m.done), megabytes(m.total)))
	}
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// counted counts written bytes on a meter.
type counted struct {
	meter *meter
	n     int64
	alive func() // called for each piece
}

func (c *counted) Write(p []byte) (int, error) {
	c.alive()
	c.n += int64(len(p))
	c.meter.add(int64(len(p)))
	return len(p), nil
}
