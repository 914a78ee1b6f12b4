package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// The modes of disk limits. An empty one is Off.
const (
	Auto      = "auto"    // by project quotas if the state directory has them, otherwise no limit
	ByProject = "project" // by project quotas
	Loop      = "loop"    // by a separate file system for each box, in a file
	Off       = "off"
)

// Limits limit the writable layers of boxes.
type Limits struct {
	Mode  string
	Bytes map[string]int64 // by the size of the box
	Files int64
}

// Of returns the limit for a box of that size.
func (d Limits) Of(size string) Limit { return Limit{Bytes: d.Bytes[size], Files: d.Files} }

// ErrUnlimited means that disks are not limited, because the state directory has no project quotas.
var ErrUnlimited = errors.New("the disks of boxes are not limited: one box can fill the disk of state_dir, which stops the others and " +
	"keeps the gateway from storing changes. Mount state_dir with project quotas (xfs: mount -o prjquota; ext4: tune2fs -O project,quota and " +
	"mount -o prjquota), or set launcher.disk.mode to loop, or to off if that is meant")

// Check returns why the limits cannot be enforced in a state directory. It returns ErrUnlimited if they are not enforced
// and the mode permits that.
func (d Limits) Check(stateDir string) error {
	switch d.Mode {
	case ByProject, Auto:
		err := HasProjects(existingParent(stateDir))
		if d.Mode == Auto && errors.Is(err, ErrNoProjects) {
			return ErrUnlimited
		}
		if err != nil {
			return fmt.Errorf("launcher.disk.mode is project, but %s cannot be limited so: mount it with prjquota, or use mode loop (%w)", stateDir, err)
		}
	case Loop:
		if _, err := exec.LookPath(Formatter); err != nil {
			return fmt.Errorf("launcher.disk.mode is loop, which needs %s: apt-get install e2fsprogs", Formatter)
		}
		if _, err := os.Stat("/dev/loop-control"); err != nil {
			return errors.New("launcher.disk.mode is loop, but this kernel has no loop devices: modprobe loop")
		}
	}
	return nil
}

// existingParent returns the nearest existing parent directory.
func existingParent(dir string) string {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}
