package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Every box has 65536 user and group IDs of the host to itself, from 0x70000000 up: above what distributions give to
// users (/etc/subuid) and what systemd-nspawn picks from, below the sign bit that some file systems trip over.
const (
	firstID   = 0x70000000
	idsPerBox = 1 << 16
	maxBoxes  = 4096
)

// idRange is the range of one box: its root is base on the host.
type idRange struct{ base int }

func rangeAt(index int) idRange { return idRange{firstID + index*idsPerBox} }

// host returns what an ID inside the box is outside.
func (r idRange) host(id int) int { return r.base + id }

func (r idRange) mapping() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(r.base), Size: idsPerBox}}
}

// idClaims is the directory in which launchers of this host agree who has which range: a symbolic link for each range,
// named by its index and pointing at the box's directory.
const idClaims = "/run/boxgate-ids"

// claimIDs takes a free range for the box in dir, whatever launcher of this host the others belong to. A claim whose box
// directory is gone is free again.
func claimIDs(ctx context.Context, dir string) (index int, err error) {
	if err := os.MkdirAll(idClaims, 0o700); err != nil {
		return 0, err
	}
	unlock, err := lockFile(ctx, filepath.Join(idClaims, ".lock"), nil)
	if err != nil {
		return 0, err
	}
	defer unlock()
	for i := range maxBoxes {
		claim := filepath.Join(idClaims, strconv.Itoa(i))
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

// freeIDs gives back what the box in dir has claimed. It looks at the claims themselves: the box's record may be lost.
func freeIDs(dir string) error {
	claims, err := os.ReadDir(idClaims)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range claims {
		claim := filepath.Join(idClaims, c.Name())
		if owner, err := os.Readlink(claim); err == nil && owner == dir {
			if err := os.Remove(claim); err != nil {
				return err
			}
		}
	}
	return nil
}

// renewClaim claims a box's range again after a reboot has cleared the claims, before a new box takes it.
func renewClaim(index int, dir string) error {
	if err := os.MkdirAll(idClaims, 0o700); err != nil {
		return err
	}
	err := os.Symlink(dir, filepath.Join(idClaims, strconv.Itoa(index)))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
