// Package history keeps the latest runs and log lines of each box, in memory and bounded.
package history

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"boxgate/policy"
)

// MaxLogs is the number of log lines kept per box.
const MaxLogs = 1000

const (
	maxRuns      = 100      // finished runs per box
	maxBoxes     = 10_000   // boxes
	maxRunOutput = 4 << 10  // bytes of output per run
	maxAnswer    = 64 << 10 // bytes of an agent's answer per run
)

// History keeps the latest runs and log lines of each box in memory. Safe for concurrent use.
type History struct {
	exists func(policy.BoxID) bool

	mu    sync.Mutex
	boxes map[policy.BoxID]*boxHistory
}

type boxHistory struct {
	runs []*Run     // oldest first
	logs []LogEntry // oldest first
}

// LogEntry is one log line of a box in the SDK's format.
type LogEntry struct {
	Timestamp int64  `json:"timestamp"`
	Level     string `json:"level" enum:"info warn error"`
	Source    string `json:"source" enum:"system user agent"`
	Message   Text   `json:"message"`
}

// SchemaName returns the name of the type in the OpenAPI document.
func (LogEntry) SchemaName() string { return "logEntry" }

// New makes an empty history. exists reports whether a box exists: entries for other boxes are dropped, so that late
// entries for a deleted box do not stay forever. nil: every box exists.
func New(exists func(policy.BoxID) bool) *History {
	return &History{exists: exists, boxes: make(map[policy.BoxID]*boxHistory)}
}

// boxLocked returns the history of a box, or nil if the box does not exist. If there are too many boxes, it drops another
// one's history.
func (h *History) boxLocked(box policy.BoxID) *boxHistory {
	if b := h.boxes[box]; b != nil {
		return b
	}
	if h.exists != nil && !h.exists(box) {
		return nil
	}
	for other := range h.boxes {
		if len(h.boxes) < maxBoxes {
			break
		}
		delete(h.boxes, other)
	}
	b := &boxHistory{}
	h.boxes[box] = b
	return b
}

// Forget drops the history of a box. Call it after the box was deleted.
func (h *History) Forget(box policy.BoxID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.boxes, box)
}

// Log adds a line to the log of a box.
func (h *History) Log(box policy.BoxID, level, source, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logLocked(box, level, source, fmt.Sprintf(format, args...))
}

func (h *History) logLocked(box policy.BoxID, level, source, message string) {
	b := h.boxLocked(box)
	if b == nil {
		return
	}
	b.logs = append(b.logs, LogEntry{time.Now().Unix(), level, source, Text(message)})
	if over := len(b.logs) - MaxLogs; over > 0 {
		b.logs = slices.Delete(b.logs, 0, over)
	}
}

// Logs returns a page of a box's log lines, oldest first.
func (h *History) Logs(box policy.BoxID, offset, limit int) []LogEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	page := []LogEntry{}
	if b := h.boxes[box]; b != nil && offset < len(b.logs) {
		page = append(page, b.logs[offset:min(len(b.logs), offset+limit)]...)
	}
	return page
}
