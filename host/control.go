package host

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"boxgate/host/nslock"
)

// AskControl sends a command to the gateway of this network namespace, and decodes its answer into out.
func AskControl(ctx context.Context, word string, out any) error {
	path, err := nslock.Socket()
	if err != nil {
		return err
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return errors.New("no gateway runs in this network namespace, or it cannot be asked by you: run the command as root where the gateway runs")
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if !isRoot(c) {
		return errors.New("the control socket of this network namespace was not opened by root")
	}
	answer := ControlAnswer{Answer: out}
	if err := errors.Join(json.NewEncoder(c).Encode(map[string]string{"do": word}), json.NewDecoder(c).Decode(&answer)); err != nil {
		return errors.New("the gateway did not answer: look at its log")
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	return nil
}

// isRoot reports whether the peer's process belongs to root.
func isRoot(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	ctlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return ctlErr == nil && err == nil && peer.Uid == 0
}

// serveControl serves `gateway reload` and `gateway upgrade` on the control socket of the network namespace, for root
// only.
func (h *Host) serveControl(ctx context.Context) error {
	ln := h.parts.listeners.Namespace
	if ln == nil {
		return nil
	}
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	var answers sync.WaitGroup
	defer answers.Wait() // a replaced process still sends its answer before it exits
	for {
		c, err := ln.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		answers.Go(func() {
			defer c.Close()
			var asked struct{ Do string }
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })()
			if !isRoot(c) || json.NewDecoder(io.LimitReader(c, 4096)).Decode(&asked) != nil {
				return
			}
			answer, err := h.options.Control(ctx, asked.Do)
			out := ControlAnswer{Answer: answer}
			if err != nil {
				out.Error = err.Error()
			}
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
			_ = json.NewEncoder(c).Encode(out)
		})
	}
}

// ControlAnswer is the answer on the control socket of the network namespace.
type ControlAnswer struct {
	Answer any    `json:"answer,omitempty"`
	Error  string `json:"error,omitempty"`
}
