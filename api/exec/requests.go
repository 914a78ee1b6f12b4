package exec

import (
	"fmt"
	"slices"
	"time"

	"boxgate/api/history"
	"boxgate/audit"
	"boxgate/policy"
)

// withRequests adds the requests to a box's public URLs to its log, by time.
func withRequests(logs []history.LogEntry, events []audit.Event) []history.LogEntry {
	for i := range events {
		if e := &events[i]; e.Stage == policy.StageURL && e.Phase != audit.PhaseOpen {
			logs = append(logs, requestEntry(e))
		}
	}
	slices.SortStableFunc(logs, func(a, b history.LogEntry) int { return int(a.Timestamp - b.Timestamp) })
	return logs
}

// requestEntry formats a request as a log line: client, request, status, bytes of the bodies, duration, and the
// credential or the reason of the refusal.
func requestEntry(e *audit.Event) history.LogEntry {
	level := "info"
	switch {
	case e.Status >= 500:
		level = "error"
	case e.Verdict != policy.Allow:
		level = "warn"
	}
	client := "-"
	if e.Peer.IsValid() {
		client = e.Peer.String()
	}
	by := string(e.Credential)
	if by == "" {
		by = "refused, " + string(e.Reason)
	}
	text := fmt.Sprintf("%s %s port %d %s: %d, %d bytes in, %d out, %v, %s",
		client, e.Method, e.Port, e.Path, e.Status, e.BytesIn, e.BytesOut, e.Duration.Round(10*time.Microsecond), by)
	if e.Count > 1 {
		text += fmt.Sprintf(", %d times", e.Count)
	}
	if e.Error != "" {
		text += ": " + e.Error
	}
	return history.LogEntry{Timestamp: e.Time.Unix(), Level: level, Source: "system", Message: history.Text(text)}
}
