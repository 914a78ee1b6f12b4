package boxfs

import (
	"context"
	"errors"

	"boxgate/launcher/boxfs/worker"
)

// OpenWatch starts a session for [Session.Watch]. Of its other methods, only Pid, Ended and Close may be called.
func OpenWatch(ctx context.Context, cfg Config) (*Session, error) {
	s, err := Open(ctx, cfg)
	if err == nil {
		s.closeTimeout = watchCloseTimeout
	}
	return s, err
}

// watchCloseTimeout is how long the process of a watch may take to end. It leaves no files behind, and a frozen one takes for ever.
const watchCloseTimeout = sftpCloseTimeout

// Watch reports changes in a directory, and with recursive also in those below, until the session's context ends. The first call of emit
// has no events: from then on every change is reported. With entries, events describe the files. Calls of emit do not overlap;
// while one lasts, events wait in the pipe and in the kernel's queue, which are bounded.
//
// The error is never nil. It is a *[worker.Failure] if the directory is the reason, also of a later end, or that of emit.
func (s *Session) Watch(path string, recursive, entries bool, emit func([]worker.Event) error) error {
	_, err := s.Do(worker.Request{Op: worker.OpWatch, Path: []byte(path), Recursive: recursive, Entries: entries})
	if err != nil {
		return err
	}
	if err := emit(nil); err != nil {
		return err
	}
	for {
		a, err := s.answer()
		if err != nil {
			return err
		}
		if len(a.Events) == 0 {
			return s.broken(errors.New("a watch has ended without a reason"))
		}
		if err := emit(a.Events); err != nil {
			return err
		}
	}
}
