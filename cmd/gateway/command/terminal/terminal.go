// Package terminal controls the terminal of the command line: its raw mode and its size.
package terminal

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"boxgate/api"
)

// Terminal is the terminal of this process.
type Terminal struct{ fd int }

// IsOne reports whether a file is a terminal.
func IsOne(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Of returns the terminal behind in, or nil if in is not a terminal.
func Of(in io.Reader) *Terminal {
	f, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &Terminal{int(f.Fd())}
}

// Raw switches the terminal to raw mode. restore undoes that.
func (t *Terminal) Raw() (restore func(), err error) {
	before, err := term.MakeRaw(t.fd)
	if err != nil {
		return nil, fmt.Errorf("the terminal cannot be put into raw mode: %w", err)
	}
	return func() { _ = term.Restore(t.fd, before) }, nil
}

// Size returns the size of the terminal, or 24 rows of 80 columns if it is unknown.
func (t *Terminal) Size() api.TerminalSize {
	cols, rows, err := term.GetSize(t.fd)
	if err != nil || cols <= 0 || rows <= 0 {
		cols, rows = 80, 24
	}
	return api.TerminalSize{Rows: uint16(min(rows, api.MaxDimension)), Cols: uint16(min(cols, api.MaxDimension))}
}

// Follow calls resized with the size of the terminal, now and whenever it changes, until ctx ends or resized fails.
func (t *Terminal) Follow(ctx context.Context, resized func(api.TerminalSize) error) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, unix.SIGWINCH)
	defer signal.Stop(changes)
	for resized(t.Size()) == nil {
		select {
		case <-changes:
		case <-ctx.Done():
			return
		}
	}
}
