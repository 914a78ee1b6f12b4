package audit

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestServerLogIsBoundedAndCounts(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zapcore.InfoLevel)
	taken := 0
	l := ServerLog(zap.New(core), func(line string) bool {
		if strings.HasPrefix(line, "take") {
			taken++
			return true
		}
		return false
	})
	for range 3000 {
		l.Print("something \x1b[2J happened")
		l.Print("take this")
	}
	if n := lines.Len(); n == 0 || n > 2*serverLineBurst || taken != 3000 {
		t.Errorf("%d lines were written and %d taken", n, taken)
	}
	if text := lines.All()[0].ContextMap()["message"]; text != `something \x1b[2J happened` {
		t.Errorf("message %q", text)
	}
}
