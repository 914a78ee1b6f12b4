package history

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/api"
	"boxgate/policy"
)

// MaxLogs is how many log lines of a box are remembered.
const MaxLogs = 1000

const (
	maxRuns      = 100     // finished runs remembered per box
	maxBoxes     = 10_000  // boxes remembered at all
	maxRunOutput = 4 << 10 // bytes of output remembered per run
)

// ErrCancelled is the cause with which [History.Cancel] cancels a run's context.
var ErrCancelled = errors.New("the run was cancelled")

// History remembers the latest runs and log lines of each box, in memory. Safe for concurrent use.
type History struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*boxHistory
}

type boxHistory struct {
	runs []*Run     // oldest first
	logs []LogEntry // oldest first
}

// Run is one command, running or ended. History.mu guards its fields, all but the ID, which never changes.
type Run struct {
	view   RunView
	cancel context.CancelCauseFunc // nil once ended
	output []byte                  // the first maxRunOutput bytes
}

// ID names the run.
func (r *Run) ID() string { return r.view.ID }

// RunView is a run in the SDK's words. Times are Unix seconds.
type RunView struct {
	ID           string       `json:"id"`
	BoxID        policy.BoxID `json:"box_id"`
	CustomerID   string       `json:"customer_id"`
	Type         string       `json:"type" enum:"shell"`
	Status       string       `json:"status" enum:"running completed failed cancelled"`
	Prompt       string       `json:"prompt" doc:"the command"`
	Output       string       `json:"output,omitempty" doc:"how it began"`
	ExitCode     *int         `json:"exit_code,omitempty"`
	InputTokens  int64        `json:"input_tokens"`
	OutputTokens int64        `json:"output_tokens"`
	CostUSD      float64      `json:"cost_usd"`
	DurationMS   int64        `json:"duration_ms"`
	CPUNs        int64        `json:"cpu_ns,omitempty"`
	ErrorMessage string       `json:"error_message,omitempty"`
	CreatedAt    int64        `json:"created_at"`
	CompletedAt  int64        `json:"completed_at,omitempty"`

	began time.Time
}

// SchemaName names the type in the description of the API.
func (RunView) SchemaName() string { return "runView" }

// LogEntry is one log line of a box in the SDK's words.
type LogEntry struct {
	Timestamp int64  `json:"timestamp"`
	Level     string `json:"level" enum:"info warn error"`
	Source    string `json:"source" enum:"system user"`
	Message   string `json:"message"`
}

// SchemaName names the type in the description of the API.
func (LogEntry) SchemaName() string { return "logEntry" }

// New makes an empty history.
func New() *History { return &History{boxes: make(map[policy.BoxID]*boxHistory)} }

// ofLocked returns the history of a box, forgetting some other box when there are too many.
func (h *History) ofLocked(box policy.BoxID) *boxHistory {
	if b := h.boxes[box]; b != nil {
		return b
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

// Forget drops what is remembered of a box.
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
	b := h.ofLocked(box)
	b.logs = append(b.logs, LogEntry{time.Now().Unix(), level, source, message})
	if over := len(b.logs) - MaxLogs; over > 0 {
		b.logs = slices.Delete(b.logs, 0, over)
	}
}

// Start records the start of a command. cancel kills it.
func (h *History) Start(box policy.BoxID, command []string, cancel context.CancelCauseFunc) *Run {
	now := time.Now()
	r := &Run{cancel: cancel, view: RunView{
		ID: "run_" + strings.ToLower(rand.Text()), BoxID: box, CustomerID: api.CustomerID, Type: "shell", Status: "running",
		Prompt: shellWords(command), CreatedAt: now.Unix(), began: now,
	}}
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.ofLocked(box)
	b.runs = append(b.runs, r)
	if len(b.runs) > maxRuns {
		// A run that has not ended is kept, so that it can be cancelled.
		if i := slices.IndexFunc(b.runs, func(r *Run) bool { return r.cancel == nil }); i >= 0 {
			b.runs = slices.Delete(b.runs, i, i+1)
		}
	}
	return r
}

// Wrote keeps the beginning of a run's output.
func (h *History) Wrote(r *Run, b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if room := maxRunOutput - len(r.output); room > 0 {
		r.output = append(r.output, b[:min(room, len(b))]...)
	}
}

// End records how a run ended. status is completed, failed or cancelled.
func (h *History) End(r *Run, res api.ExecResult, err error, status, message string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.cancel = nil
	v := &r.view
	v.Status, v.ErrorMessage = status, message
	v.Output = strings.ToValidUTF8(string(r.output), "\uFFFD")
	v.CompletedAt = time.Now().Unix()
	v.DurationMS = time.Since(v.began).Milliseconds()
	v.CPUNs = res.CPU.Nanoseconds()
	if err != nil {
		h.logLocked(v.BoxID, "error", "user", v.Prompt+": "+message)
		return
	}
	v.ExitCode = &res.ExitCode
	h.logLocked(v.BoxID, "info", "user", fmt.Sprintf("%s: exit %d after %d ms", v.Prompt, res.ExitCode, v.DurationMS))
}

// Runs lists the runs of a box, newest first.
func (h *History) Runs(box policy.BoxID) []RunView {
	h.mu.Lock()
	defer h.mu.Unlock()
	views := []RunView{}
	if b := h.boxes[box]; b != nil {
		for _, r := range slices.Backward(b.runs) {
			views = append(views, r.viewLocked())
		}
	}
	return views
}

func (r *Run) viewLocked() RunView {
	v := r.view
	if r.cancel != nil {
		v.DurationMS = time.Since(v.began).Milliseconds()
	}
	return v
}

// Cancel kills a running command and returns the run; a run that ended is returned as it is.
func (h *History) Cancel(box policy.BoxID, id string) (RunView, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxes[box]
	if b == nil {
		return RunView{}, false
	}
	i := slices.IndexFunc(b.runs, func(r *Run) bool { return r.view.ID == id })
	if i < 0 {
		return RunView{}, false
	}
	if r := b.runs[i]; r.cancel != nil {
		r.cancel(ErrCancelled)
		r.view.Status = "cancelled"
	}
	return b.runs[i].viewLocked(), true
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

// shellWords formats a command on one line, truncated to 1 KiB.
func shellWords(command []string) string {
	var words []string
	for _, w := range command {
		if w == "" || strings.ContainsAny(w, " \t\r\n\"'\\$`|&;<>()*?") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words, w)
	}
	line := strings.Join(words, " ")
	if len(line) > 1024 {
		line = strings.ToValidUTF8(line[:1024], "") + "…"
	}
	return line
}
