package enclosure

import (
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"boxgate/enclosure/inside"
)

// foregroundTerminal opens the terminal of this process if the process is in the foreground and not part of a pipeline, in
// which another program may need the terminal as well.
func foregroundTerminal() *os.File {
	if !term.IsTerminal(0) || !term.IsTerminal(1) {
		return nil
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	if !isForeground(tty) {
		tty.Close()
		return nil
	}
	return tty
}

func isForeground(tty *os.File) bool {
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// SharesTerminal reports whether keys that send signals affect both this process and the command, as in a pipeline on a
// terminal.
func (p *Process) SharesTerminal() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	return p.tty == nil && isForeground(tty)
}

// reclaimTerminal makes this process the foreground of its terminal again.
func (p *Process) reclaimTerminal() { _ = inside.SetForeground(p.tty, unix.Getpgrp()) }
