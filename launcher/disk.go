package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/disk"
	"boxgate/launcher/rootfs"
	"boxgate/policy"
)

// DiskLimits limit the writable layers of boxes.
type DiskLimits = disk.Limits

// Reserve is the space kept free on a disk.
type Reserve = disk.Reserve

// DiskFullError reports that an operation would use the reserved space of a disk.
type DiskFullError = disk.FullError

// ErrNoDiskLimit is returned for boxes without a disk limit.
var ErrNoDiskLimit = disk.ErrUnlimited

// CheckFree returns nil if n more bytes fit on the disk of the state directory without using the space reserved for the gateway.
func (l *Launcher) CheckFree(n int64) error {
	return l.Reserve().Check(n)
}

// Reserve returns the reserved space on the disk of the state directory.
func (l *Launcher) Reserve() Reserve { return Reserve{Dir: l.cfg.StateDir, Bytes: l.cfg.Reserve} }

// FreeBytes returns how many bytes are free on the disk of the state directory; 0 if unknown.
func (l *Launcher) FreeBytes() int64 { return l.Reserve().FreeBytes() }

// Kept returns how many bytes on the disk of the state directory are kept free for the gateway.
func (l *Launcher) Kept() int64 { return l.Reserve().ReservedBytes() }

// volume returns the box's own file system. It may not exist.
func (d dirs) volume(id policy.BoxID) disk.Volume {
	return disk.Volume{File: filepath.Join(d.box(id), "disk"), At: d.limited(id)}
}

// limitDisk limits the writable layer of a new box, before that is made. project is the quota project; 0 without one.
func (d dirs) limitDisk(ctx context.Context, id policy.BoxID, size string, limits DiskLimits) (project uint32, err error) {
	limit := limits.Of(cmp.Or(size, string(SizeSmall)))
	switch limits.Mode {
	case disk.Loop:
		return 0, d.volume(id).Make(ctx, limit)
	case disk.Auto, disk.ByProject:
	default:
		return 0, nil
	}
	p, err := disk.NewProject(d.box(id), limit)
	if errors.Is(err, disk.ErrNoProjects) && limits.Mode == disk.Auto {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return uint32(p), errors.Join(os.Mkdir(d.limited(id), 0o700), p.Own(d.limited(id)))
}

// mountDisk mounts the box's own file system, if it has one and it is not mounted yet, as after a reboot.
func (d dirs) mountDisk(id policy.BoxID) error {
	v := d.volume(id)
	if _, err := os.Lstat(v.File); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return v.Mount()
}

// freeDisk removes the disk limit of a box that has no processes left.
func (d dirs) freeDisk(id policy.BoxID, project uint32) error {
	return errors.Join(d.volume(id).Unmount(), disk.Project(project).Free(d.box(id)))
}

// ErrNoFiles is returned by OpenFiles for boxes whose files are invisible to the host, as with gVisor.
var ErrNoFiles = boxfs.ErrElsewhere

// ErrOwnFilesOnly is returned by OpenFiles and OpenWatch for another user than the box's own if this host starts commands with the runtime.
var ErrOwnFilesOnly = errors.New("boxes cannot be entered on this host")

// OpenFiles opens a session that works on the files of a box as a user, in the form of [ExecSpec.User], with exactly the credentials of a
// command of this user; see [boxfs.Session]. The box must not be paused before the session is closed.
func (l *Launcher) OpenFiles(ctx context.Context, id policy.BoxID, user string) (*boxfs.Session, func(), error) {
	r, err := l.loadRecord(id)
	if err != nil {
		return nil, nil, err
	}
	as, err := parseUser(r.Account, user)
	if err != nil {
		return nil, nil, err
	}
	done, err := l.fileSessions.Acquire(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	return endingWith(done)(l.openFilesOf(ctx, r, as, boxfs.Open))
}

// ErrManyTransfers is returned by OpenSFTP for a box with as many transfers as it may have.
var ErrManyTransfers = fmt.Errorf("the box has %d SFTP sessions, which is the limit; close some", boxfs.PerBox)

// OpenSFTP opens a process that serves SFTP for the files of a box as its ordinary user; see [boxfs.OpenSFTP]. The box must not be paused before
// the session is closed.
func (l *Launcher) OpenSFTP(ctx context.Context, id policy.BoxID) (*boxfs.Session, func(), error) {
	r, err := l.loadRecord(id)
	if err != nil {
		return nil, nil, err
	}
	done, ok := l.transfers.TryAcquire(id)
	if !ok {
		return nil, nil, ErrManyTransfers
	}
	return endingWith(done)(l.openFiles(ctx, r, rootfs.UID, boxfs.OpenSFTP))
}

// ErrManyWatches is returned by OpenWatch for a box with as many watches as it may have.
var ErrManyWatches = fmt.Errorf("%d watches of files of the box run, which is the limit; end some", boxfs.PerBox)

// OpenWatch opens a session that watches files of a box as a user, like [Launcher.OpenFiles]; see [boxfs.OpenWatch]. The box may be paused
// meanwhile, once the watch is in place.
func (l *Launcher) OpenWatch(ctx context.Context, id policy.BoxID, user string) (*boxfs.Session, func(), error) {
	r, err := l.loadRecord(id)
	if err != nil {
		return nil, nil, err
	}
	as, err := parseUser(r.Account, user)
	if err != nil {
		return nil, nil, err
	}
	done, ok := l.watches.TryAcquire(id)
	if !ok {
		return nil, nil, ErrManyWatches
	}
	return endingWith(done)(l.openFilesOf(ctx, r, as, boxfs.OpenWatch))
}

// endingWith adds to a session the function that closes it, and that calls done once its process has ended.
func endingWith(done func()) func(*boxfs.Session, error) (*boxfs.Session, func(), error) {
	return func(s *boxfs.Session, err error) (*boxfs.Session, func(), error) {
		if err != nil {
			done()
			return nil, nil, err
		}
		return s, func() {
			s.Close()
			go func() { <-s.Ended(); done() }()
		}, nil
	}
}

// openRoot opens the root of a running box with O_PATH. It returns [ErrNoFiles] for boxes whose files are invisible to the host.
func (l *Launcher) openRoot(id policy.BoxID) (*os.File, error) {
	if l.runtime.OwnFiles {
		return nil, ErrNoFiles
	}
	pid, err := readPid(filepath.Join(l.dirs.box(id), "pid"))
	if err != nil {
		return nil, err
	}
	return boxfs.OpenRoot(pid, l.dirs.userPin(id), rootfs.InitPath)
}

// openFilesOf opens a session with the credentials of a command of a user. The box's own user needs only its ID; for others the process
// enters the box, which not every host allows.
func (l *Launcher) openFilesOf(ctx context.Context, r record, user execUser, open func(context.Context, boxfs.Config) (*boxfs.Session, error)) (*boxfs.Session, error) {
	switch {
	case user.uid == rootfs.UID && user.gid == rootfs.UID:
		return l.openFiles(ctx, r, rootfs.UID, open)
	case !r.Created:
		return nil, fmt.Errorf("box %s: %w", r.ID, ErrNotRunning)
	case l.runtime.OwnFiles:
		return nil, ErrNoFiles
	case l.entering == nil:
		return nil, ErrOwnFilesOnly
	}
	return open(ctx, boxfs.Config{UID: user.uid, GID: user.gid, Home: user.home, Enter: func(ctx context.Context, args, env []string, streams [3]*os.File) (boxfs.Process, error) {
		return l.filesProcess(ctx, r, user, args, env, streams)
	}})
}

// openFiles opens a session as a user of the box, without capabilities.
func (l *Launcher) openFiles(ctx context.Context, r record, user int, open func(context.Context, boxfs.Config) (*boxfs.Session, error)) (*boxfs.Session, error) {
	if !r.Created {
		return nil, fmt.Errorf("box %s: %w", r.ID, ErrNotRunning)
	}
	root, err := l.openRoot(r.ID)
	if errors.Is(err, ErrNoFiles) {
		return nil, err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("box %s: %w", r.ID, ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("box %s: %w", r.ID, err)
	}
	defer root.Close()
	own := r.ids().Host(user)
	return open(ctx, boxfs.Config{Root: root, UID: own, GID: own, Home: r.Account.HomeDir(), Join: l.cgroup(r.ID).Join})
}
