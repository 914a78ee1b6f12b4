package enclosure

import (
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"boxgate/enclosure/inside"
)

// foregroundTerminal opens the terminal of this process if it is in the foreground there, and alone: in a pipeline, another
// program may need the terminal as well.
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

// SharesTerminal reports whether keys that become signals reach this process and the command alike, as in a pipeline on a
// terminal.
func (p *Process) SharesTerminal() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	return p.tty == nil && isForeground(tty)
}

// takeBack makes this process the foreground of its terminal again.
func (p *Process) takeBack() { _ = inside.TakeTerminal(p.tty, unix.Getpgrp()) }
