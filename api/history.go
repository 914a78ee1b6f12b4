package api

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/policy"
)

const (
	maxRuns      = 100     // finished runs remembered per box
	maxLogs      = 1000    // log lines remembered per box
	maxBoxes     = 10_000  // boxes remembered at all
	maxRunOutput = 4 << 10 // bytes of output remembered per run
)

// history remembers the latest runs and log lines of each box, in memory. Safe for concurrent use.
type history struct {
	mu    sync.Mutex
	boxes map[policy.BoxID]*boxHistory
}

type boxHistory struct {
	runs []*run     // oldest first
	logs []logEntry // oldest first
}

// run is one command, running or ended. history.mu guards its fields.
type run struct {
	view   runView
	cancel context.CancelCauseFunc // nil once ended
	output []byte                  // the first maxRunOutput bytes
}

// runView is a run in the SDK's words. Times are Unix seconds.
type runView struct {
	ID           string       `json:"id"`
	BoxID        policy.BoxID `json:"box_id"`
	CustomerID   string       `json:"customer_id"`
	Type         string       `json:"type" doc:"shell"`
	Status       string       `json:"status" doc:"running, completed, failed or cancelled"`
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

// logEntry is one log line of a box in the SDK's words.
type logEntry struct {
	Timestamp int64  `json:"timestamp"`
	Level     string `json:"level" doc:"info, warn or error"`
	Source    string `json:"source" doc:"system or user"`
	Message   string `json:"message"`
}

func newHistory() *history { return &history{boxes: make(map[policy.BoxID]*boxHistory)} }

// ofLocked returns the history of a box, forgetting some other box when there are too many.
func (h *history) ofLocked(box policy.BoxID) *boxHistory {
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

func (h *history) forget(box policy.BoxID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.boxes, box)
}

func (h *history) log(box policy.BoxID, level, source, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.logLocked(box, level, source, fmt.Sprintf(format, args...))
}

func (h *history) logLocked(box policy.BoxID, level, source, message string) {
	b := h.ofLocked(box)
	b.logs = append(b.logs, logEntry{time.Now().Unix(), level, source, message})
	if over := len(b.logs) - maxLogs; over > 0 {
		b.logs = slices.Delete(b.logs, 0, over)
	}
}

// start records the start of a command. cancel kills it.
func (h *history) start(box policy.BoxID, command []string, cancel context.CancelCauseFunc) *run {
	now := time.Now()
	r := &run{cancel: cancel, view: runView{
		ID: "run_" + strings.ToLower(rand.Text()), BoxID: box, CustomerID: CustomerID, Type: "shell", Status: "running",
		Prompt: shellWords(command), CreatedAt: now.Unix(), began: now,
	}}
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.ofLocked(box)
	b.runs = append(b.runs, r)
	if len(b.runs) > maxRuns {
		// A run that has not ended is kept, so that it can be cancelled.
		if i := slices.IndexFunc(b.runs, func(r *run) bool { return r.cancel == nil }); i >= 0 {
			b.runs = slices.Delete(b.runs, i, i+1)
		}
	}
	return r
}

// wrote keeps the beginning of a run's output.
func (h *history) wrote(r *run, b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if room := maxRunOutput - len(r.output); room > 0 {
		r.output = append(r.output, b[:min(room, len(b))]...)
	}
}

// end records how a run ended. status is completed, failed or cancelled.
func (h *history) end(r *run, res ExecResult, err error, status, message string) {
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

// runs lists the runs of a box, newest first.
func (h *history) runs(box policy.BoxID) []runView {
	h.mu.Lock()
	defer h.mu.Unlock()
	views := []runView{}
	if b := h.boxes[box]; b != nil {
		for _, r := range slices.Backward(b.runs) {
			views = append(views, r.viewLocked())
		}
	}
	return views
}

func (r *run) viewLocked() runView {
	v := r.view
	if r.cancel != nil {
		v.DurationMS = time.Since(v.began).Milliseconds()
	}
	return v
}

// cancel kills a running command and returns the run; a run that ended is returned as it is.
func (h *history) cancelRun(box policy.BoxID, id string) (runView, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.boxes[box]
	if b == nil {
		return runView{}, false
	}
	i := slices.IndexFunc(b.runs, func(r *run) bool { return r.view.ID == id })
	if i < 0 {
		return runView{}, false
	}
	if r := b.runs[i]; r.cancel != nil {
		r.cancel(errCancelled)
		r.view.Status = "cancelled"
	}
	return b.runs[i].viewLocked(), true
}

// logs returns a page of a box's log lines, oldest first.
func (h *history) logs(box policy.BoxID, offset, limit int) []logEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	page := []logEntry{}
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
