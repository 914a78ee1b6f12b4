package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"boxgate/launcher/files"
)

// Every box has 65536 user and group IDs of the host to itself, from 0x70000000 up: above what distributions give to
// users (/etc/subuid) and what systemd-nspawn picks from, below the sign bit that some file systems trip over.
const (
	firstID   = 0x70000000
	idsPerBox = 1 << 16
	maxBoxes  = 4096
)

// IDs is the range of one box: its root is base on the host.
type IDs struct{ base int }

// IDsAt is the range of that index, which [ClaimIDs] returned.
func IDsAt(index int) IDs { return IDs{firstID + index*idsPerBox} }

// IDsFrom is the range of a sandbox of others whose root is base on the host.
func IDsFrom(base int) IDs { return IDs{base} }

// Host returns what an ID inside the box is outside.
func (r IDs) Host(id int) int { return r.base + id }

// Inside returns what an ID of the host is inside the box, if the box has it.
func (r IDs) Inside(host int) (id int, ok bool) {
	id = host - r.base
	return id, id >= 0 && id < idsPerBox
}

// Mapping is the range in the words of the runtime.
func (r IDs) Mapping() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(r.base), Size: idsPerBox}}
}

// Claims is the directory in which launchers of this host agree who has which range: a symbolic link for each range,
// named by its index and pointing at the box's directory.
const Claims = "/run/boxgate-ids"

// ClaimIDs takes a free range for the box in dir, whatever launcher of this host the others belong to. A claim whose box
// directory is gone is free again.
func ClaimIDs(ctx context.Context, dir string) (index int, err error) {
	unlock, err := lockClaims(ctx)
	if err != nil {
		return 0, err
	}
	defer unlock()
	for i := range maxBoxes {
		claim := filepath.Join(Claims, strconv.Itoa(i))
		owner, err := os.Readlink(claim)
		if err == nil {
			if owner == dir {
				return i, nil
			}
			if _, err := os.Stat(owner); !errors.Is(err, fs.ErrNotExist) {
				continue // taken; or not to be told, which counts as taken
			}
			if err := os.Remove(claim); err != nil {
				return 0, err
			}
		}
		if err := os.Symlink(dir, claim); err != nil {
			return 0, err
		}
		return i, nil
	}
	return 0, fmt.Errorf("all %d ranges of user IDs on this host are taken by boxes", maxBoxes)
}

// lockClaims makes the directory and takes its lock. Between the two a launcher that is uninstalled may remove it.
func lockClaims(ctx context.Context) (unlock func(), err error) {
	for {
		if err := os.MkdirAll(Claims, 0o700); err != nil {
			return nil, err
		}
		unlock, err := files.Lock(ctx, filepath.Join(Claims, ".lock"), nil)
		if !errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			return unlock, err
		}
	}
}

// claimTimeout is how long giving back waits for launchers that look for a range.
const claimTimeout = time.Minute

// FreeIDs gives back what the box in dir has claimed. It looks at the claims themselves: the box's record may be lost.
func FreeIDs(dir string) error {
	if _, err := os.Stat(Claims); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	unlock, err := files.Lock(ctx, filepath.Join(Claims, ".lock"), nil) // or a claim that was just made in place of it would go
	if err != nil {
		return err
	}
	defer unlock()
	claims, err := os.ReadDir(Claims)
	if err != nil {
		return err
	}
	for _, c := range claims {
		claim := filepath.Join(Claims, c.Name())
		if owner, err := os.Readlink(claim); err == nil && owner == dir {
			if err := os.Remove(claim); err != nil {
				return err
			}
		}
	}
	return nil
}

// ForgetClaims removes the directory of the claims unless a launcher of this host has some.
func ForgetClaims(ctx context.Context) error {
	unlock, err := lockClaims(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if entries, err := os.ReadDir(Claims); err != nil || len(entries) > 1 {
		return err
	}
	return os.RemoveAll(Claims)
}

// HoldIDs claims a box's range again, which a reboot has made forget. It fails if another box has it by now.
func HoldIDs(ctx context.Context, index int, dir string) error {
	unlock, err := lockClaims(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	claim := filepath.Join(Claims, strconv.Itoa(index))
	owner, err := os.Readlink(claim)
	switch {
	case err == nil && owner == dir:
		return nil
	case err == nil:
		if _, err := os.Stat(owner); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("its user IDs, range %d, are those of another box now: %s", index, owner)
		}
		if err := os.Remove(claim); err != nil {
			return err
		}
	}
	return os.Symlink(dir, claim)
}
