package launcher

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"boxgate/launcher/disk"
	"boxgate/policy"
)

// DiskLimits limit what boxes write to their roots.
type DiskLimits = disk.Limits

// Reserve is what is kept free of a disk.
type Reserve = disk.Reserve

// DiskFullError says that something would use what is kept free of a disk.
type DiskFullError = disk.FullError

// ErrNoDiskLimit: what boxes write is not limited.
var ErrNoDiskLimit = disk.ErrUnlimited

// Room returns an error that says why, unless n more bytes leave free on the disk of the state directory what is kept for the gateway.
func (l *Launcher) Room(n int64) error {
	return l.Reserve().Room(n)
}

// Reserve returns what is kept free of the disk of the state directory.
func (l *Launcher) Reserve() Reserve { return Reserve{Dir: l.cfg.StateDir, Bytes: l.cfg.Reserve} }

// Left returns how many bytes are free on the disk of the state directory; 0 if that is not known.
func (l *Launcher) Left() int64 { return l.Reserve().Left() }

// volume is the box's own file system, if it has one.
func (d dirs) volume(id policy.BoxID) disk.Volume {
	return disk.Volume{File: filepath.Join(d.box(id), "disk"), At: d.limited(id)}
}

// limitDisk limits what a new box of that size can write to its root, before it has one. project is what counts it; 0 if
// nothing does.
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

// mountDisk mounts a box's own file system, if it has one and it is not mounted, as after a reboot.
func (d dirs) mountDisk(id policy.BoxID) error {
	v := d.volume(id)
	if _, err := os.Lstat(v.File); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return v.Mount()
}

// freeDisk takes away what limits a box that has no processes any more.
func (d dirs) freeDisk(id policy.BoxID, project uint32) error {
	return errors.Join(d.volume(id).Unmount(), disk.Project(project).Free(d.box(id)))
}
