package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"boxgate/audit/lines"
	"boxgate/config"
)

// openLog makes the log: what the gateway writes itself, by the logger, and through the same writer the decisions.
func openLog(c config.Log, to *os.File) (*zap.Logger, *lines.Writer, error) {
	level, err := zap.ParseAtomicLevel(c.Level)
	if err != nil {
		return nil, nil, fmt.Errorf("log.level: %w", err)
	}
	enc, encoder := zap.NewProductionEncoderConfig(), zapcore.NewJSONEncoder
	enc.TimeKey = "time"
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	if c.Format == "console" {
		enc, encoder = zap.NewDevelopmentEncoderConfig(), zapcore.NewConsoleEncoder
		enc.CallerKey, enc.ConsoleSeparator = "", "  "
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000") // as decisions have it
	}
	out := lines.New(lines.File(to))
	log := zap.New(zapcore.NewCore(encoder(enc), out, level), zap.AddCaller())
	out.OnLost(func(n uint64) {
		log.Warn("lines of the log were lost: it is read too slowly, or could not be written", zap.Uint64("lost", n))
	})
	return log, out, nil
}

// deadly are the signals that end a Go program that does not catch them, but for SIGINT and SIGTERM, and SIGHUP, which reloads.
var deadly = []os.Signal{
	syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGSTKFLT, syscall.SIGSYS,
}

// syncOnSignals makes signals that end the process write the lines that are pending first. A SIGINT or SIGTERM is one of
// them after ctx has ended: until then it asks for an orderly stop.
func syncOnSignals(ctx context.Context, out *lines.Writer) (stop func()) {
	signals := make(chan os.Signal, 1)
	for _, s := range deadly {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	unwatch := context.AfterFunc(ctx, func() { signal.Notify(signals, os.Interrupt, syscall.SIGTERM) })
	done := make(chan struct{})
	go syncOn(signals, done, out)
	return func() {
		unwatch()
		signal.Stop(signals)
		close(done)
	}
}

// syncOn writes the pending lines when a signal arrives, and lets that have its usual effect then, on a thread of its own: the
// dump that the runtime writes after some of them has the registers of the thread that took the signal, which in any other
// could hold part of a secret that is being copied.
func syncOn(signals <-chan os.Signal, done <-chan struct{}, out *lines.Writer) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case s := <-signals:
			_ = out.Sync()
			signal.Reset(s)
			_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), s.(syscall.Signal))
		case <-done:
			return
		}
	}
}
