package audit

import (
	"bytes"
	"log"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// The lines that a server of net/http may write a second, for as long as it goes on, and at once.
const (
	serverLines     = 5
	serverLineBurst = 50
)

// ServerLog returns the error log of an [net/http.Server]. Whoever can reach the server causes its lines, so their number
// is bounded; the next one that is written says how many were not. take, if not nil, sees each line first and reports
// whether it has dealt with it.
func ServerLog(to *zap.Logger, take func(line string) bool) *log.Logger {
	return log.New(&serverLog{to: to, take: take, room: rate.NewLimiter(serverLines, serverLineBurst)}, "", 0)
}

type serverLog struct {
	to   *zap.Logger
	take func(line string) bool
	room *rate.Limiter

	mu      sync.Mutex
	skipped uint64
}

// Write takes one line.
func (l *serverLog) Write(b []byte) (int, error) {
	line := string(bytes.TrimRight(b, "\n"))
	if l.take != nil && l.take(line) {
		return len(b), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.room.Allow() {
		l.skipped++
		return len(b), nil
	}
	l.to.Warn("HTTP server", zap.String("message", Escape(line, maxText)), zap.Uint64("skipped_before", l.skipped))
	l.skipped = 0
	return len(b), nil
}
