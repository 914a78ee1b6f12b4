package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"boxgate/api"
	session "boxgate/api/session/client"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/terminal"
)

// forwarded lists the signals forwarded to the command in the box, with their names in the API.
var forwarded = map[os.Signal]string{syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT"}

// maxForwarded is the number of signals forwarded. The next one ends the session, even if the command reads no input and
// signals no longer reach it.
const maxForwarded = 2

// runInteractive runs a command in a box with the standard streams of this process, in its terminal if tty is not nil.
func runInteractive(cmd *cobra.Command, client *api.Client, box string, req session.Request, tty *terminal.Terminal) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	ctx, end := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	defer end(nil)
	interrupted := context.AfterFunc(cmd.Context(), func() { end(errors.New("interrupted before the command started")) })
	if tty != nil {
		size := tty.Size()
		req.Terminal = &size
		if kind := os.Getenv("TERM"); kind != "" {
			req.Env = append(req.Env, "TERM="+kind)
		}
	}
	s, err := session.Open(ctx, client, box, req)
	interrupted() // signals now go to the command
	if err != nil {
		return err
	}
	if tty != nil {
		restore, err := tty.Raw()
		if err != nil {
			return err
		}
		defer restore()
		go tty.Follow(ctx, s.Resize)
	}
	go forwardSignals(ctx, end, s, signals, tty != nil)
	go sendStdin(end, s, cmd.InOrStdin())
	return exitError(s.Wait(cmd.OutOrStdout(), cmd.ErrOrStderr()))
}

// forwardSignals forwards the first signals to the command and ends the session on the next one. If the command has a terminal, any
// signal ends the session: keys such as Ctrl-C arrive as input there, so a signal is meant for this process.
func forwardSignals(ctx context.Context, end context.CancelCauseFunc, s *session.Session, signals <-chan os.Signal, tty bool) {
	for n := 0; ; n++ {
		select {
		case sig := <-signals:
			if tty || n == maxForwarded {
				number, _ := sig.(syscall.Signal)
				end(cli.StatusError{Status: 128 + int(number), Err: fmt.Errorf("%s: the session was closed, and the command killed", sig)})
				return
			}
			go func() { _ = s.Signal(forwarded[sig]) }() // may wait behind input that the command does not read
		case <-ctx.Done():
			return
		}
	}
}

// sendStdin sends standard input. A read error ends the session, so that the command does not mistake truncated input for
// complete input.
func sendStdin(end context.CancelCauseFunc, s *session.Session, in io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if _, err := s.Write(buf[:n]); err != nil {
				return // Wait returns the reason
			}
		}
		switch {
		case err == io.EOF:
			_ = s.CloseWrite()
			return
		case err != nil:
			end(fmt.Errorf("standard input cannot be read: %w", err))
			return
		}
	}
}
