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

// openLog opens the log. The returned logger and the decisions share the returned writer.
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
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000") // like decisions
	}
	out := lines.New(lines.File(to))
	log := zap.New(zapcore.NewCore(encoder(enc), out, level), zap.AddCaller())
	out.OnLost(func(n uint64) {
		log.Warn("lines of the log were lost: it is read too slowly, or could not be written", zap.Uint64("lost", n))
	})
	return log, out, nil
}

// fatalSignals lists the signals that end a Go program unless caught, except for SIGINT, SIGTERM, and SIGHUP, which reloads.
var fatalSignals = []os.Signal{
	syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGSTKFLT, syscall.SIGSYS,
}

// syncOnSignals writes the pending log lines before a signal ends the process. SIGINT and SIGTERM are included only after
// ctx has ended; until then they ask for an orderly stop.
func syncOnSignals(ctx context.Context, out *lines.Writer) (stop func()) {
	signals := make(chan os.Signal, 1)
	for _, s := range fatalSignals {
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

// syncOn writes the pending lines when a signal arrives, then lets the signal take its default effect. It uses a
// dedicated thread: after some signals the runtime dumps the registers of the receiving thread. On any other thread they
// might contain part of a secret that is being copied.
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
