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

// Every box has its own 65536 user and group IDs of the host, from 0x70000000 up: above the ranges that distributions give
// to users (/etc/subuid) and that systemd-nspawn picks from, below the sign bit that some file systems cannot handle.
const (
	firstID   = 0x70000000
	idsPerBox = 1 << 16
	maxBoxes  = 4096
)

// IDs is the range of one box. base is its root on the host.
type IDs struct{ base int }

// IDsAt returns the range with an index from [ClaimIDs].
func IDsAt(index int) IDs { return IDs{firstID + index*idsPerBox} }

// IDsFrom returns the range of an attached sandbox whose root is base on the host.
func IDsFrom(base int) IDs { return IDs{base} }

// Host converts an ID inside the box to the host's.
func (r IDs) Host(id int) int { return r.base + id }

// Inside converts an ID of the host to the box's, if it is in the range.
func (r IDs) Inside(host int) (id int, ok bool) {
	id = host - r.base
	return id, id >= 0 && id < idsPerBox
}

// Mapping returns the range in the runtime's format.
func (r IDs) Mapping() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(r.base), Size: idsPerBox}}
}

// Claims is the directory in which the launchers of this host allocate ranges: a symbolic link for each range, named by its
// index and pointing at the box's directory.
const Claims = "/run/boxgate-ids"

// ClaimIDs claims a free range for the box in dir, across all launchers of this host. A claim is free again when its box
// directory no longer exists.
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
				continue // taken; or unknown, which counts as taken
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

// lockClaims makes the directory and takes its lock. It retries if another launcher removes the directory in between.
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

// claimTimeout is how long FreeIDs waits for launchers that look for a range.
const claimTimeout = time.Minute

// FreeIDs releases the claims of the box in dir. It examines the claims themselves, because the box's record may be lost.
func FreeIDs(dir string) error {
	if _, err := os.Stat(Claims); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	unlock, err := files.Lock(ctx, filepath.Join(Claims, ".lock"), nil) // otherwise it could remove a claim that has just replaced it
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

// RemoveClaims removes the directory of the claims unless it has claims.
func RemoveClaims(ctx context.Context) error {
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

// ReclaimIDs claims a box's range again after a reboot, which clears the claims. It fails if another box has the range.
func ReclaimIDs(ctx context.Context, index int, dir string) error {
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
