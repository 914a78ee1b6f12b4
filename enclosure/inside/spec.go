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

// Spec is what the process inside is to do. It comes over a pipe: neither its arguments nor its environment show any of it.
type Spec struct {
	Args       []string
	Env        []string
	Dir        string
	UID, GID   int
	Groups     []int
	Foreground bool // the command gets the terminal, in a process group of its own

	Files   []File   // shown in the place of the host's
	Hidden  []string // files and directories that the command does not see
	Sockets []string // Unix sockets of the host, likewise
	Reach   []string // Unix sockets of the host that the command may connect to; absolute and without links
	Keep    []string // what else stays of /run
	State   string   // a mount of the process outside, to be let go of
}

// File is a file that only the command sees.
type File struct {
	Path    string // symbolic links are followed
	Content []byte
	// Always says that the file is made where the host has none; below [Private] alone.
	Always bool
}

// Private is a directory that only the command sees.
const Private = "/run/boxgate"

// maxSpec bounds what is read as a Spec.
const maxSpec = 64 << 20

// Send writes a Spec, with its length before it.
func Send(w io.Writer, s Spec) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

func receive(r io.Reader) (s Spec, err error) {
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

// Kind says what a [Report] is about.
type Kind byte

// The kinds.
const (
	Started Kind = 'r' // the command runs
	Stopped Kind = 's' // by a signal, such as Ctrl-Z
	Exited  Kind = 'x' // with a status
	Killed  Kind = 'k' // by a signal
	Refused Kind = 'n' // to connect to a Unix socket; Text is its path
	Failed  Kind = 'f' // it could not be started; Text says why, and Value is the exit status for that
)

// Report is what the process inside says about the command.
type Report struct {
	Kind  Kind
	Value byte
	Text  string
}

// ReadReport reads the next one.
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

// maxText leaves a report short enough that a pipe takes it whole (PIPE_BUF).
const maxText = 4092

func (rep Report) send(w io.Writer) {
	text := rep.Text[:min(len(rep.Text), maxText)]
	head := binary.BigEndian.AppendUint16([]byte{byte(rep.Kind), rep.Value}, uint16(len(text)))
	_, _ = w.Write(append(head, text...)) // whoever does not read it is gone, and so is this process soon
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

// Resume is the order to go on after the command was stopped. Every other order is the number of a signal for the command.
const Resume = 0
