package box

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.uber.org/zap"

	"boxgate/api"
	"boxgate/host/change"
)

// imageOf returns the configured image for a runtime name of the API, after checking that this host can provide it.
func (l *Service) imageOf(ctx context.Context, runtime string) (string, error) {
	images, name := l.cfg.Launcher.AllImages(), runtime
	if runtime == "" {
		name = "default"
	}
	found, ok := images[name]
	if !ok {
		return "", change.InvalidAt("/runtime", fmt.Sprintf("no image is configured for %q: add it to launcher.images, or use one of %s",
			runtime, strings.Join(slices.Sorted(maps.Keys(images)), ", ")))
	}
	if err := l.sandboxes.CheckImage(ctx, found); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", change.InvalidAt("/runtime", fmt.Sprintf("this host cannot have the image of %q: %v", name, err))
	}
	return found, nil
}

// originOf returns the root file system of a new box. For a box from a snapshot it also fills in the request.
func (l *Service) originOf(ctx context.Context, req *api.CreateRequest) (origin, error) {
	if req.Snapshot == "" {
		image, err := l.imageOf(ctx, req.Runtime)
		return origin{image: image}, err
	}
	runtime := req.Runtime
	from, err := l.snapshots.inherit(ctx, req)
	if err != nil || runtime == "" || runtime == req.Runtime {
		return from, err
	}
	if image, err := l.imageOf(ctx, runtime); err != nil || image != from.image {
		return origin{}, change.InvalidAt("/runtime", fmt.Sprintf("the snapshot was taken of a box with runtime %q, and so is a box from it: leave runtime out", req.Runtime))
	}
	req.Runtime = runtime
	return from, nil
}

// ensureImage builds, pulls or unpacks the image of a new box unless it is present, which may take minutes.
func (p *provisioning) ensureImage(ctx context.Context) error {
	b := p.box
	if len(b.Record.Layers) > 0 {
		return nil // a box from a snapshot keeps the snapshot's layers
	}
	defer b.Progress.Store(nil)
	err := b.Unlocked(func() error {
		return p.sandboxes.EnsureImage(ctx, b.Record.Image, func(line string) {
			b.Progress.Store(&line)
			p.log.Info("image", zap.String("box", string(b.ID)), zap.String("image", b.Record.Image), zap.String("progress", line))
		})
	})
	if b.Deleting {
		return errDeletedConcurrently
	}
	return err
}
