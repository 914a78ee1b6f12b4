package api

import (
	"context"
	"slices"
)

// SessionRequest is a command to run with a caller who writes its input, signals it, and may give it a terminal.
type SessionRequest struct {
	Command  []string          // argv; never empty
	Dir      string            // absolute, in the box
	Env      map[string]string // added to that of the box, and wins but for the tokens of header rules
	Terminal *TerminalSize     // nil: three streams
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct{ Rows, Cols uint16 }

// SessionSignals are the signals that can be sent to a session, without SIG.
var SessionSignals = []string{"TERM", "KILL", "INT", "HUP", "TSTP", "QUIT", "USR1", "USR2"}

// IsSessionSignal reports whether a signal can be sent to a session.
func IsSessionSignal(name string) bool { return slices.Contains(SessionSignals, name) }

// Session is a command that runs in a box.
type Session interface {
	// Pid is the ID of the command in the box.
	Pid() int
	// Signal sends one of SessionSignals to the command and all that it has started.
	Signal(name string) error
	// Resize sets the size of its terminal, if it has one.
	Resize(TerminalSize) error
	// Wait returns how the command ended, once all its output has been delivered. When ctx ends first, the command is
	// killed with all that it has started, and the error is ctx's. It must be called once.
	Wait(ctx context.Context) (ExecResult, error)
}
