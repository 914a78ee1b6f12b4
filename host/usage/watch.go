package usage

import (
	"context"
	"errors"

	"boxgate/api"
	apifiles "boxgate/api/files"
	"boxgate/launcher"
	"boxgate/launcher/boxfs/worker"
	"boxgate/policy"
)

// WatchFiles implements [apifiles.Watcher]. The box is kept awake until the watch is in place. Later its process is frozen and thawed with
// the box, whose files do not change in between.
func (u *Service) WatchFiles(ctx context.Context, id policy.BoxID, path string, o apifiles.WatchOptions, emit func([]apifiles.Event) error) error {
	_, done, err := u.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	session, end, err := u.sandboxes.OpenWatch(ctx, id, o.User)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, launcher.ErrNoFiles):
		return api.Errorf(api.ErrNotSupported, "with this OCI runtime the files of a box are not in a file system of the host; watch them with a command in the box")
	case errors.Is(err, launcher.ErrOwnFilesOnly):
		return errOwnFilesOnly
	case errors.Is(err, launcher.ErrManyWatches):
		return api.Errorf(api.ErrLimit, "%v", err)
	default:
		return api.Errorf(api.ErrUnavailable, "the files of the box cannot be reached: %w", err)
	}
	defer end()
	begun := false
	var failed error
	err = session.Watch(path, o.Recursive, o.Entries, func(events []worker.Event) error {
		if !begun {
			begun = true
			done()
		}
		failed = emit(watchEvents(events))
		return failed
	})
	switch _, fileFailed := errors.AsType[*worker.Failure](err); {
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case fileFailed:
		return fileError(path, err)
	case begun:
		return api.Errorf(api.ErrUnavailable, "the watch has ended because the box was stopped or deleted, or has no memory left: %w", err)
	}
	return api.Errorf(api.ErrUnavailable, "the files of the box cannot be watched: %w", err)
}

func watchEvents(events []worker.Event) []apifiles.Event {
	var list []apifiles.Event
	for _, e := range events {
		event := apifiles.Event{Kind: apifiles.EventKind(e.Kind), Name: e.Name}
		if e.Entry != nil {
			info := apifiles.Info(*e.Entry)
			event.Entry = &info
		}
		list = append(list, event)
	}
	return list
}
