package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/policy/document"
)

// Exit statuses of every command.
const (
	ExitOK         = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitUntestable = 3 // of `gateway box selftest`: the box cannot be tested
	ExitDifferent  = 3 // of `gateway policy diff --exit-code`: the policies differ
)

// usageError is a mistake on the command line.
type usageError struct{ error }

// UsageError marks err as a mistake on the command line.
func UsageError(err error) error { return usageError{err} }

// Usagef returns a mistake on the command line.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// CommandExit is an exit status without a message: of a failed command in a box, with whose status the gateway exits, or
// one that is a result and not a failure.
type CommandExit struct{ Status int }

// Error implements error.
func (e CommandExit) Error() string {
	return fmt.Sprintf("the command exited with status %d", e.Status)
}

// StatusError is an error with a specific exit status.
type StatusError struct {
	Status int
	Err    error
}

// Error implements error.
func (e StatusError) Error() string { return e.Err.Error() }

// Unwrap returns the error without its status.
func (e StatusError) Unwrap() error { return e.Err }

// Report prints the error returned by cmd, if any, as text or as JSON, and returns the exit status.
func Report(w io.Writer, cmd *cobra.Command, err error, asJSON bool) int {
	if err == nil {
		return ExitOK
	}
	if exit, ok := errors.AsType[CommandExit](err); ok {
		return exit.Status
	}
	status, text := statusOf(err), Explain(cmd, err)
	switch {
	case asJSON:
		_ = WriteJSON(w, reportOf(err, text, status))
	case status == ExitUsage || explainedByHelp(err):
		fmt.Fprintf(w, "gateway: %s\nSee `%s --help`.\n", text, cmd.CommandPath())
	default:
		fmt.Fprintf(w, "gateway: %s\n", text)
	}
	return status
}

// explainedByHelp reports whether the help of the command is a useful next step: after a 400 or 422, or for an unusable
// file.
func explainedByHelp(err error) bool {
	refused, ok := errors.AsType[*api.ResponseError](err)
	_, ofFile := errors.AsType[fileError](err)
	return ofFile || ok && (refused.Status == http.StatusBadRequest || refused.Status == http.StatusUnprocessableEntity)
}

func statusOf(err error) int {
	if _, ok := errors.AsType[usageError](err); ok {
		return ExitUsage
	}
	if other, ok := errors.AsType[StatusError](err); ok {
		return other.Status
	}
	return ExitFailed
}

// report is an error as JSON.
type report struct {
	Error      string `json:"error"`
	ExitStatus int    `json:"exit_status"`
	HTTPStatus int    `json:"http_status,omitempty"` // of the gateway's answer
	Pointer    string `json:"pointer,omitempty"`     // to the refused field

	Problems []document.Problem `json:"problems,omitempty"` // every mistake, if there are several
}

func reportOf(err error, text string, status int) report {
	r := report{Error: text, ExitStatus: status}
	if refused, ok := errors.AsType[*api.ResponseError](err); ok {
		r.HTTPStatus, r.Pointer, r.Problems = refused.Status, refused.Pointer, refused.Problems
	}
	if invalid, ok := errors.AsType[*document.InvalidError](err); ok {
		r.Problems = invalid.Problems
	}
	if len(r.Problems) < 2 {
		r.Problems = nil
	}
	return r
}
