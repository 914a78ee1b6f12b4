package field

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"boxgate/api"
)

// SnapshotFiles is the number of files of 10 KiB that a box writes before its snapshot is taken.
const SnapshotFiles = 1000

// Write makes the box write the files of its snapshots.
func (b *LaunchedBox) Write(ctx context.Context) error {
	return b.run(ctx, "sh", "-c", fmt.Sprintf("mkdir made && cd made && for i in $(seq %d); do head -c 10240 /dev/urandom >$i; done", SnapshotFiles))
}

// Snapshot takes a snapshot of the box and returns when it is ready.
func (b *LaunchedBox) Snapshot(ctx context.Context) (id string, err error) {
	var s struct{ ID, Status, Error string }
	err = b.g.Client.Do(ctx, "POST", api.BoxPath(b.id, "snapshots"), map[string]any{"name": "measured"}, &s)
	for err == nil && s.Status == "creating" {
		s.Status, s.Error, err = b.snapshotStatus(ctx, s.ID)
	}
	if err == nil && s.Status != "ready" {
		err = fmt.Errorf("the snapshot is %q: %s", s.Status, s.Error)
	}
	return s.ID, err
}

// snapshotStatus polls the status of a snapshot after a short wait.
func (b *LaunchedBox) snapshotStatus(ctx context.Context, id string) (status, why string, err error) {
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
		return "", "", context.Cause(ctx)
	}
	var list struct {
		Snapshots []struct{ ID, Status, Error string }
	}
	if err := b.g.Client.Get(ctx, api.BoxPath(b.id, "snapshots"), &list); err != nil {
		return "", "", err
	}
	for _, s := range list.Snapshots {
		if s.ID == id {
			return s.Status, s.Error, nil
		}
	}
	return "", "", errors.New("the snapshot is gone")
}

// DeleteSnapshot deletes a snapshot, even if ctx has ended.
func (g *Gateway) DeleteSnapshot(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return g.Client.Do(ctx, "DELETE", "/v2/box/snapshots", map[string]any{"ids": []string{id}}, nil)
}

// Fork creates count boxes of a snapshot concurrently, and returns when a command has run in each. The caller must
// delete the returned boxes, even on an error.
func (g *Gateway) Fork(ctx context.Context, snapshot string, count int) ([]*LaunchedBox, error) {
	boxes, errs := make([]*LaunchedBox, count), make([]error, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			var made struct{ ID string }
			if errs[i] = g.Client.Do(ctx, "POST", "/v2/box/from-snapshot", map[string]any{"snapshot_id": snapshot}, &made); errs[i] != nil {
				return
			}
			boxes[i] = &LaunchedBox{g, made.ID}
			errs[i] = boxes[i].Step(ctx, StepExec)
		})
	}
	all.Wait()
	return slices.DeleteFunc(boxes, func(b *LaunchedBox) bool { return b == nil }), errors.Join(errs...)
}
