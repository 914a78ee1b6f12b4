package change

import (
	"errors"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"boxgate/api"
	"boxgate/policy/document"
	"boxgate/store"
)

// NotStored returns the error for a failed write to the store. what states the outcome; NotStored adds the remedy.
func NotStored(log *zap.Logger, what string, err error) error {
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return err
	}
	log.Error("the store could not be written", zap.Error(err))
	advice := "see the gateway's log"
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		advice = "the disk of state_dir is full: make room there and try again"
	case errors.Is(err, unix.EROFS):
		advice = "the disk of state_dir can only be read: mount it for writing and try again"
	case errors.Is(err, unix.EIO):
		advice = "the disk of state_dir fails: replace it"
	}
	return &api.Error{Kind: api.ErrUnavailable, Message: what + ": " + advice, Cause: err}
}

// InvalidAt returns the error for one mistake in a request.
func InvalidAt(pointer, message string) error {
	return &document.InvalidError{Problems: []document.Problem{{Pointer: pointer, Message: message}}}
}
