// Package sftpserver is the process that serves SFTP for one box. It is the gateway's own program, executed again, and confined to the
// box as in [boxgate/launcher/boxfs/worker] before it reads the first byte of the client. So the protocol is parsed, and paths are
// resolved, with the file access of the box's user and nothing else; the gateway only copies bytes.
//
// A program that imports this package becomes such a process when it is started under the name [Name].
package sftpserver

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/pkg/sftp"

	"boxgate/launcher/boxfs/worker"
)

// Name is the name under which a program is started as a server. Its arguments are those of [worker.Name].
// Descriptor 3 is the root of the box.
const Name = "boxgate-sftp"

// init runs the server, if this process is one, before the rest of the program is initialized.
func init() {
	if len(os.Args) == 4 && os.Args[0] == Name {
		os.Exit(run())
	}
}

func run() int {
	if err := worker.Confine(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot enter the box:", err)
		return 1
	}
	_ = os.Chdir(worker.HomeDir()) // where relative paths begin; without a home, at the root. The library's option would make links absolute
	server, err := sftp.NewServer(streams{os.Stdin, os.Stdout})
	if err == nil {
		err = server.Serve()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// streams are the client's bytes.
type streams struct {
	io.Reader
	io.Writer
}

// Close implements [io.Closer]. The end of the process closes the streams.
func (streams) Close() error { return nil }
