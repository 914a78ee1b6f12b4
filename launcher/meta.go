package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"boxgate/launcher/files"
	"boxgate/launcher/namespace"
	"boxgate/policy"
)

// record is the stored state of a box.
type record struct {
	ID    policy.BoxID `json:"id"`
	Image string       `json:"image"` // the name given when the box was created
	// ImageKey and Rootfs identify that image, since the name may have been given to another one. See [Launcher.imageOf].
	ImageKey string            `json:"image_key,omitempty"`
	Rootfs   string            `json:"rootfs,omitempty"`
	Layers   []string          `json:"layers,omitempty"` // over the image, the lowest first
	Size     Size              `json:"size"`
	Env      map[string]string `json:"env,omitempty"`     // of Spec
	Base     []string          `json:"base,omitempty"`    // of the image
	IDIndex  int               `json:"id_index"`          // number of its range of user IDs
	Project  uint32            `json:"project,omitempty"` // the disk's quota project; 0: no quota
	Created  bool              `json:"created,omitempty"` // false: an unfinished box, to be removed after a restart
}

func (r record) ids() namespace.IDs { return namespace.IDsAt(r.IDIndex) }

// loadRecord returns the record of a box, or ErrNotFound.
func (l *Launcher) loadRecord(id policy.BoxID) (record, error) {
	if err := checkID(id); err != nil {
		return record{}, err
	}
	data, err := os.ReadFile(l.dirs.record(id))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, fmt.Errorf("box %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return record{}, fmt.Errorf("box %s: %w", id, err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("box %s: its record is damaged: %w", id, err)
	}
	if r.ID != id {
		return record{}, fmt.Errorf("box %s: its record is damaged: it names %q", id, string(r.ID))
	}
	return r, nil
}

func (l *Launcher) saveRecord(r record) error {
	if err := files.WriteJSON(l.dirs.record(r.ID), r); err != nil {
		return fmt.Errorf("box %s: its record cannot be written: %w", r.ID, err)
	}
	return nil
}
