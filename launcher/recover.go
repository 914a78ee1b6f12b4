package launcher

import (
	"context"
	"errors"
	"os"

	"boxgate/policy"
)

// Recover brings order after the process that made the boxes ended, in whatever way: boxes that were complete are adopted
// as they are and returned, their processes untouched; what was half made is removed, and so are namespace pins, mounts
// and containers without a box. Call it once, before anything else.
func (l *Launcher) Recover(ctx context.Context) ([]Status, error) {
	known, err := l.leftovers()
	if err != nil {
		return nil, err
	}
	var errs []error
	for id := range known {
		r, err := l.load(id)
		switch {
		case err == nil && r.Created:
			errs = append(errs, unmountAll(l.dirs.mounts(id)), renewClaim(r.IDIndex, l.dirs.box(id)))
		default:
			errs = append(errs, l.Delete(ctx, id))
		}
	}
	list, err := l.List(ctx)
	return list, errors.Join(append(errs, err)...)
}

// leftovers returns every ID that something in the launcher's directories is named after.
func (l *Launcher) leftovers() (map[policy.BoxID]bool, error) {
	ids := map[policy.BoxID]bool{}
	for _, dir := range []string{l.dirs.boxes(), l.dirs.pins(), l.dirs.userPins(), l.dirs.allMounts(), l.dirs.runtimeRoot()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if id := policy.BoxID(e.Name()); checkID(id) == nil {
				ids[id] = true
			}
		}
	}
	return ids, nil
}
