package audit

import (
	"bytes"
	"log"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// The maximum rate per second, and burst, of lines from a net/http server.
const (
	serverLines     = 5
	serverLineBurst = 50
)

// ServerLog returns an error log for an [net/http.Server]. Anyone who can reach the server can cause lines in it, so
// their rate is bounded; the next line written includes the number of dropped ones. take, if not nil, is called first
// for each line and reports whether it has handled it.
func ServerLog(to *zap.Logger, take func(line string) bool) *log.Logger {
	return log.New(&serverLog{to: to, handled: take, limiter: rate.NewLimiter(serverLines, serverLineBurst)}, "", 0)
}

type serverLog struct {
	to      *zap.Logger
	handled func(line string) bool
	limiter *rate.Limiter

	mu      sync.Mutex
	skipped uint64
}

// Write writes one line.
func (l *serverLog) Write(b []byte) (int, error) {
	line := string(bytes.TrimRight(b, "\n"))
	if l.handled != nil && l.handled(line) {
		return len(b), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.limiter.Allow() {
		l.skipped++
		return len(b), nil
	}
	l.to.Warn("HTTP server", zap.String("message", Escape(line, maxText)), zap.Uint64("skipped_before", l.skipped))
	l.skipped = 0
	return len(b), nil
}
