package launcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"

	"boxgate/launcher/boxfs"
	"boxgate/launcher/boxfs/worker"
	"boxgate/launcher/namespace"
	"boxgate/policy"
)

// renewTimeout bounds how long a box may take to get new roots: its own processes may slow its file system down.
const renewTimeout = 10 * time.Second

// fingerprint identifies a set of roots, given in PEM. It is "" for none.
func fingerprint(roots []byte) string {
	if len(roots) == 0 {
		return ""
	}
	sum := sha256.Sum256(roots)
	return hex.EncodeToString(sum[:])
}

// RenewRoots adds roots, given in PEM, to the certificates of a running box, unless the box was given exactly these before. ca is
// that of [Spec]. Roots that were given earlier stay. It works as the box's root, in the box's control group and with its disk limit;
// a program that reads the certificates finds the old or the new ones. It returns [ErrNoFiles] for boxes whose
// files are invisible to the host. The box must not be paused before it returns; it takes at most renewTimeout.
func (l *Launcher) RenewRoots(ctx context.Context, id policy.BoxID, ca, roots []byte) error {
	r, err := l.loadRecord(id)
	if err != nil || len(roots) == 0 || r.Roots == fingerprint(roots) {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, renewTimeout, fmt.Errorf("box %s: its certificates could not be replaced within %v", id, renewTimeout))
	defer cancel()
	done, err := l.fileSessions.Acquire(ctx, id)
	if err != nil {
		return err
	}
	s, err := l.openFiles(ctx, r, 0, boxfs.Open)
	if err != nil {
		done()
		return err
	}
	_, err = s.Do(worker.Request{Op: worker.OpRenew, CA: ca, Roots: roots})
	s.Close()
	go func() { <-s.Ended(); done() }()
	if err != nil {
		return fmt.Errorf("box %s: %w", id, err)
	}
	defer l.lock(id)()
	if r, err = l.createdRecord(id); err != nil { // it may have been deleted
		return err
	}
	l.noteRoots(r, roots)
	return nil
}

// noteRoots records the roots that a box was given. If that fails, the box gets them again. The caller holds the box's lock.
func (l *Launcher) noteRoots(r record, roots []byte) {
	if r.Roots == fingerprint(roots) {
		return
	}
	r.Roots = fingerprint(roots)
	if err := l.saveRecord(r); err != nil {
		l.log.Warn("that a box was given root certificates could not be recorded", zap.String("box", string(r.ID)), zap.Error(err))
	}
}

// WithOldRoots lists the running and paused boxes, of a launcher with this configuration, that were not given these roots. It creates
// nothing, not even the launcher's directories.
func WithOldRoots(cfg Config, roots []byte) ([]policy.BoxID, error) {
	if len(roots) == 0 {
		return nil, nil
	}
	l := &Launcher{dirs: dirsOf(cfg.StateDir, cfg.RunDir)}
	entries, err := os.ReadDir(l.dirs.boxes())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var old []policy.BoxID
	for _, e := range entries {
		id := policy.BoxID(e.Name())
		r, err := l.createdRecord(id)
		if err == nil && r.Roots != fingerprint(roots) && namespace.IsPinned(l.dirs.pin(id)) {
			old = append(old, id)
		}
	}
	return old, err
}
