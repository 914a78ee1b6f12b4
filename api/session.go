package api

import (
	"context"
	"slices"
)

// SessionRequest is a command to run interactively: the caller writes its input, can send it signals, and may give it a
// terminal.
type SessionRequest struct {
	Command  []string          // argv; never empty
	Dir      string            // absolute, in the box
	Env      map[string]string // added to the box's environment and overrides it, except for the tokens of header rules
	Terminal *TerminalSize     // nil: stdin, stdout and stderr as separate streams
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct{ Rows, Cols uint16 }

// SessionSignals are the signals that can be sent to a session, without the prefix SIG.
var SessionSignals = []string{"TERM", "KILL", "INT", "HUP", "TSTP", "QUIT", "USR1", "USR2"}

// IsSessionSignal reports whether the signal can be sent to a session.
func IsSessionSignal(name string) bool { return slices.Contains(SessionSignals, name) }

// Session is a running command in a box.
type Session interface {
	// Pid returns the process ID of the command in the box.
	Pid() int
	// Signal sends one of SessionSignals to the command and all its descendants.
	Signal(name string) error
	// Resize sets the size of the terminal, if the session has one.
	Resize(TerminalSize) error
	// Wait returns the command's result after all its output has been delivered. If ctx ends first, Wait kills the
	// command with its descendants and returns ctx's error. It must be called exactly once.
	Wait(ctx context.Context) (ExecResult, error)
}
