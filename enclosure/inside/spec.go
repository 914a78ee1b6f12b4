package inside

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Command is the hidden command of the gateway that runs [Main].
const Command = "run-inside"

// Spec describes the command and its environment. It is sent over a pipe, so that it is not visible in arguments or the
// environment of the process inside.
type Spec struct {
	Args       []string
	Env        []string
	Dir        string
	UID, GID   int
	Groups     []int
	Foreground bool // the command gets the terminal, in its own process group

	Files          []File   // shown instead of the host's
	Hidden         []string // files and directories to hide
	Sockets        []string // Unix sockets of the host to hide
	AllowedSockets []string `json:"Reach"` // Unix sockets of the host that the command may connect to; absolute and without links
	KeepRun        []string `json:"Keep"`  // further parts of /run that stay
	State          string   // a mount of the process outside, to be unmounted
}

// File is a file that only the command sees.
type File struct {
	Path    string // symbolic links are followed
	Content []byte
	// Always: the file is created even if it is missing on the host. Only below [Private].
	Always bool
}

// Private is a directory that only the command sees.
const Private = "/run/boxgate"

// maxSpec is the maximum size of an encoded Spec.
const maxSpec = 64 << 20

// Send writes a Spec, preceded by its length.
func Send(w io.Writer, s Spec) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

func readSpec(r io.Reader) (s Spec, err error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return s, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxSpec {
		return s, errors.New("the description of the command is too long")
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

// Kind is the kind of a [Report].
type Kind byte

// The kinds of reports.
const (
	Started Kind = 'r' // the command runs
	Stopped Kind = 's' // by a signal, such as Ctrl-Z
	Exited  Kind = 'x' // with a status
	Killed  Kind = 'k' // by a signal
	Refused Kind = 'n' // a connection to a Unix socket; Text is its path
	Failed  Kind = 'f' // it could not be started; Text is the reason, and Value is the exit status
)

// Report is a message of the process inside about the command.
type Report struct {
	Kind  Kind
	Value byte
	Text  string
}

// ReadReport reads the next report.
func ReadReport(r io.Reader) (rep Report, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return rep, err
	}
	text := make([]byte, binary.BigEndian.Uint16(head[2:]))
	if _, err := io.ReadFull(r, text); err != nil {
		return rep, err
	}
	return Report{Kind(head[0]), head[1], string(text)}, nil
}

// maxText keeps a report short enough that writing it to a pipe is atomic (PIPE_BUF).
const maxText = 4092

func (rep Report) send(w io.Writer) {
	text := rep.Text[:min(len(rep.Text), maxText)]
	head := binary.BigEndian.AppendUint16([]byte{byte(rep.Kind), rep.Value}, uint16(len(text)))
	_, _ = w.Write(append(head, text...)) // without a reader, this process ends soon, too
}

// startError is why a command could not be started, with the exit status that shells use for that.
type startError struct {
	status byte
	err    error
}

func (e *startError) Error() string { return e.err.Error() }

func notStarted(status byte, format string, args ...any) error {
	return &startError{status, fmt.Errorf(format, args...)}
}

// Resume is the order to continue after the command was stopped. Every other order is the number of a signal for the
// command.
const Resume = 0
