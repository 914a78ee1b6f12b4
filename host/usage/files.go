package usage

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"syscall"

	"boxgate/api"
	apifiles "boxgate/api/files"
	"boxgate/launcher"
	"boxgate/launcher/boxfs"
	"boxgate/launcher/boxfs/worker"
	"boxgate/policy"
	"boxgate/policy/document"
)

// OpenFiles implements [apifiles.Host].
func (u *Service) OpenFiles(ctx context.Context, id policy.BoxID, user string) (apifiles.Files, error) {
	_, done, err := u.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	session, end, err := u.sandboxes.OpenFiles(ctx, id, user)
	switch {
	case err == nil:
		return &boxFiles{session, func() { end(); done() }}, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, launcher.ErrNoFiles):
		err = api.Errorf(api.ErrNotSupported, "with this OCI runtime the files of a box are not in a file system of the host; read and write them with exec")
	case errors.Is(err, launcher.ErrOwnFilesOnly):
		err = errOwnFilesOnly
	default:
		err = api.Errorf(api.ErrUnavailable, "the files of the box cannot be reached: %w", err)
	}
	done()
	return nil, err
}

// errOwnFilesOnly replaces [launcher.ErrOwnFilesOnly].
var errOwnFilesOnly = api.Errorf(api.ErrNotSupported, "this host starts the commands of boxes with the OCI runtime, so the files of a box are reached as its ordinary user only; for root and other users run a command, such as cat")

// boxFiles accesses the files of a box that is kept awake.
type boxFiles struct {
	session *boxfs.Session
	close   func()
}

func (b *boxFiles) Close() { b.close() }

func (b *boxFiles) Stat(path string, follow bool) (apifiles.Info, error) {
	a, err := b.session.Do(worker.Request{Op: worker.OpStat, Path: []byte(path), Follow: follow})
	if err != nil || a.Info == nil {
		return apifiles.Info{}, fileError(path, err)
	}
	return apifiles.Info(*a.Info), nil
}

func (b *boxFiles) List(path string, most int) (infos []apifiles.Info, more bool, err error) {
	a, err := b.session.Do(worker.Request{Op: worker.OpList, Path: []byte(path), Most: most})
	for _, info := range a.Entries {
		infos = append(infos, apifiles.Info(info))
	}
	return infos, a.Truncated, fileError(path, err)
}

func (b *boxFiles) Read(path string, offset, length int64) (apifiles.Info, io.Reader, error) {
	info, content, err := b.session.Read(path, offset, length)
	return apifiles.Info(info), content, fileError(path, err)
}

func (b *boxFiles) Write(path string, o apifiles.WriteOptions, content io.Reader) error {
	return fileError(path, b.session.Send(worker.Request{Op: worker.OpWrite, Path: []byte(path), Own: o.Own}, content))
}

func (b *boxFiles) MakeDir(path string, parents bool) error {
	return b.do(worker.Request{Op: worker.OpMakeDir, Path: []byte(path), Parents: parents})
}

func (b *boxFiles) Rename(from, to string) error {
	return b.do(worker.Request{Op: worker.OpRename, Path: []byte(from), To: []byte(to)})
}

func (b *boxFiles) Remove(path string, recursive bool) error {
	return b.do(worker.Request{Op: worker.OpRemove, Path: []byte(path), Recursive: recursive})
}

func (b *boxFiles) SetAttributes(path string, set map[string]string, remove []string) error {
	return b.do(worker.Request{Op: worker.OpAttributes, Path: []byte(path), Attributes: set, Drop: remove})
}

func (b *boxFiles) do(req worker.Request) error {
	_, err := b.session.Do(req)
	return fileError(string(req.Path), err)
}

func (b *boxFiles) Pack(path string) (io.Reader, func() (int, error), error) {
	archive, err := b.session.Pack(path)
	return archive, b.session.Skipped, fileError(path, err)
}

func (b *boxFiles) Unpack(path string, archive io.Reader) error {
	return fileError(path, b.session.Send(worker.Request{Op: worker.OpUnpack, Path: []byte(path)}, archive))
}

// fileError converts an error about a file to an API error. Other errors are returned unchanged.
func fileError(path string, err error) error {
	failed, ok := errors.AsType[*worker.Failure](err)
	if !ok {
		return err
	}
	kind := api.ErrConflict
	switch {
	case errors.Is(failed, fs.ErrNotExist):
		kind = api.ErrNotFound
	case errors.Is(failed, fs.ErrPermission), errors.Is(failed, syscall.EROFS):
		kind = api.ErrForbidden
	case errors.Is(failed, syscall.EOPNOTSUPP):
		kind = api.ErrNotSupported
	case errors.Is(failed, syscall.ENOSPC), errors.Is(failed, syscall.EDQUOT):
		kind = api.ErrFull
	case errors.Is(failed, syscall.ENAMETOOLONG), errors.Is(failed, syscall.EINVAL):
		return &document.InvalidError{Problems: []document.Problem{{Message: clip(path) + ": " + failed.Message}}}
	}
	return api.Errorf(kind, "%s: %s%s", clip(path), failed.Message, remedies[failed.Errno])
}

// remedies tells what to do about an error whose name does not suggest it.
var remedies = map[syscall.Errno]string{
	syscall.EISDIR:    ": name a file, or list the directory",
	syscall.ENOTEMPTY: ": set recursive to remove it with everything in it",
	syscall.EXDEV:     ": the paths are on different file systems of the box; copy the file and remove the old one",
	syscall.ENOSPC:    ": the box has no room for it",
	syscall.EMFILE:    ": the kernel allows the box no more watches, see fs.inotify.max_user_instances",
}

// clip shortens a path for a message, and shows bytes that are not text as U+FFFD.
func clip(path string) string {
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	return string([]rune(path))
}
