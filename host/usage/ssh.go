package usage

import (
	"context"
	"errors"
	"io"

	"boxgate/api"
	"boxgate/launcher"
	"boxgate/policy"
)

// Hold wakes a box and keeps it awake until done is called, as a command does. An attached box is an error.
func (u *Service) Hold(ctx context.Context, id policy.BoxID) (done func(), err error) {
	_, done, err = u.acquire(ctx, id)
	return done, err
}

// ServeSFTP serves SFTP for the files of a box over a stream, with the rights of the box's user, until the stream or ctx ends. The box
// is awake until then.
func (u *Service) ServeSFTP(ctx context.Context, id policy.BoxID, stream io.ReadWriter) error {
	_, done, err := u.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	session, end, err := u.sandboxes.OpenSFTP(ctx, id)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, launcher.ErrNoFiles):
		return api.Errorf(api.ErrNotSupported, "with this OCI runtime the files of a box are not in a file system of the host; read and write them with commands")
	case errors.Is(err, launcher.ErrManyTransfers):
		return api.Errorf(api.ErrLimit, "%v", err)
	default:
		return api.Errorf(api.ErrUnavailable, "the files of the box cannot be reached: %w", err)
	}
	defer end()
	if err := session.Serve(stream); err != nil && ctx.Err() == nil {
		return api.Errorf(api.ErrUnavailable, "%w", err)
	}
	return context.Cause(ctx)
}
