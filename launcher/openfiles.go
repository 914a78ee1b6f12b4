package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/rootfs"
	"boxgate/policy"
)

// ErrNoFiles is returned by OpenFiles for boxes whose files are invisible to the host, as with gVisor.
var ErrNoFiles = boxfs.ErrElsewhere

// OpenFiles opens a session that works on the files of a box as boxuser; see [boxfs.Session]. The box must not be paused
// before the session is closed.
func (l *Launcher) OpenFiles(ctx context.Context, id policy.BoxID) (*boxfs.Session, func(), error) {
	r, err := l.loadRecord(id)
	if err != nil {
		return nil, nil, err
	}
	done, err := l.fileSessions.Acquire(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	s, err := l.openFiles(ctx, r)
	if err != nil {
		done()
		return nil, nil, err
	}
	return s, func() {
		s.Close()
		go func() { <-s.Ended(); done() }()
	}, nil
}

func (l *Launcher) openFiles(ctx context.Context, r record) (*boxfs.Session, error) {
	if !r.Created {
		return nil, fmt.Errorf("box %s: %w", r.ID, ErrNotRunning)
	}
	if l.runtime.OwnFiles {
		return nil, ErrNoFiles
	}
	pid, err := readPid(filepath.Join(l.dirs.box(r.ID), "pid"))
	if err != nil {
		return nil, err
	}
	root, err := boxfs.OpenRoot(pid, l.dirs.userPin(r.ID), rootfs.InitPath)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("box %s: %w", r.ID, ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("box %s: %w", r.ID, err)
	}
	defer root.Close()
	user := r.ids().Host(rootfs.UID)
	return boxfs.Open(ctx, boxfs.Config{Root: root, UID: user, GID: user, Join: l.cgroup(r.ID).Join})
}
