package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"boxgate/internal/fault"
	"boxgate/launcher/image"
	"boxgate/launcher/snapshot"
	"boxgate/policy"
)

// Images are the images in an image directory.
type Images = image.Store

// ImageStore returns the images of a launcher with this configuration.
func ImageStore(cfg Config) Images {
	return Images{Dir: cmp.Or(cfg.ImageDir, filepath.Join(cfg.StateDir, "images")), Names: cfg.Images, Agents: cfg.Agents, Reserve: cfg.Reserve}
}

// EnsureImage makes the image ready for Create: it is built, pulled or unpacked once and kept. name is an entry of
// Config.Images or an image itself (empty: the entry "default"): "debian", built with mmdebstrap; a path to a root file
// system (a directory or a tar), an OCI layout or a docker-archive; or an OCI reference, which is pulled.
//
// progress, if not nil, is called with one line per step. An interrupted build is never mistaken for an image later.
// Builders of the same image are serialized, across processes.
func (l *Launcher) EnsureImage(ctx context.Context, name string, progress func(string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	return l.images.Ensure(ctx, name, progress)
}

// HasImage reports whether an image is ready for Create.
func (l *Launcher) HasImage(name string) bool {
	_, err := l.images.Find(name)
	return err == nil
}

// CheckImage returns why an image cannot be made ready, as far as a check of a few seconds can find out.
func (l *Launcher) CheckImage(ctx context.Context, name string) error {
	return l.images.Check(ctx, name)
}

// imageOf returns the image that a box was created from.
func (l *Launcher) imageOf(r record) (image.Image, error) {
	if r.Rootfs == "" { // made by an older version
		return l.images.Find(r.Image)
	}
	return l.images.At(r.ImageKey, r.Rootfs)
}

// holdImage protects the image of a box of an earlier run from removal.
func (l *Launcher) holdImage(r record) error {
	img, err := l.imageOf(r)
	if err != nil {
		return err
	}
	return l.images.Hold(img, l.dirs.box(r.ID))
}

// maxLayers is how many layers a box may have over its image. A snapshot with more is merged into one layer.
const maxLayers = 16

// Captured is the result of [Launcher.Capture].
type Captured struct {
	Layers []string // the layers of the snapshot, the lowest first, for [Spec].Layers
	// Report covers all layers, except Files, which is only of the new one.
	snapshot.Report
}

// Capture copies a box's writable layer into a new layer of that name. The box is frozen for a moment, unless it is paused.
// The layer is on disk when Capture returns; it does not depend on the box, and stays until [Launcher.KeepLayers] removes
// it. If grow is not nil, it is called before n more bytes are written, and its error ends the capture. When Capture fails,
// there is no layer.
func (l *Launcher) Capture(ctx context.Context, id policy.BoxID, layer string, grow func(n int64) error) (c Captured, err error) {
	r, err := l.loadRecord(id)
	if err != nil {
		return Captured{}, err
	}
	img, err := l.imageOf(r)
	if err = errors.Join(err, l.dirs.mountDisk(id)); err != nil {
		return Captured{}, err
	}
	work, err := l.layers.Claim(layer)
	if err != nil {
		return Captured{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, l.captures.Total, errCaptureSlow)
	defer cancel()
	defer func() {
		if err != nil {
			err = errors.Join(err, l.trash.Move(work), l.trash.Move(l.layers.Path(layer)))
		}
	}()
	c.Layers = append(append(c.Layers, r.Layers...), layer)
	terms := l.captures.Terms
	terms.Grow = grow
	c.Report, err = snapshot.Capture(ctx, l.dirs.upper(id), r.ids(), work, terms, func(f func() error) error {
		return l.whileUnchanged(ctx, id, func() error { return errors.Join(fault.At(ctx, "snapshot: box frozen"), f()) })
	})
	if err == nil && len(c.Layers) > maxLayers {
		err = l.flatten(ctx, img, &c, work, grow)
	}
	if err == nil {
		err = fault.At(ctx, "snapshot: files copied")
	}
	if err == nil {
		err = l.layers.Complete(layer, img, c.Size)
	}
	if err == nil {
		err = fault.At(ctx, "snapshot: layer complete")
	}
	if err == nil {
		c.Size, err = l.layers.Size(c.Layers)
	}
	return c, err
}

// LayerSize returns the size of a layer on disk in bytes.
func (l *Launcher) LayerSize(layer string) (int64, error) { return l.layers.Size([]string{layer}) }

// whileUnchanged calls f while the files of a box cannot change: the box is frozen, or does not run.
func (l *Launcher) whileUnchanged(ctx context.Context, id policy.BoxID, f func() error) error {
	err := l.WhileFrozen(ctx, id, f)
	if !errors.Is(err, ErrNotRunning) {
		return err
	}
	defer l.lock(id)()
	if st, err := l.State(ctx, id); err != nil || st.Pid != 0 {
		return cmp.Or(err, fmt.Errorf("box %s has just been started; try again", id))
	}
	return f()
}

// flatten merges a new layer with the layers below it. grow is as in [Launcher.Capture].
func (l *Launcher) flatten(ctx context.Context, img image.Image, c *Captured, work string, grow func(n int64) error) error {
	last := len(c.Layers) - 1
	stack, frozen := []string{}, c.Frozen
	for _, layer := range c.Layers[:last] {
		stack = append(stack, l.layers.Path(layer))
	}
	merged := work + "-merged"
	report, err := snapshot.Merge(ctx, img.Rootfs, append(stack, work), merged, grow)
	if err == nil {
		err = l.trash.Move(work)
	}
	if err != nil {
		return errors.Join(err, l.trash.Move(merged))
	}
	c.Layers, c.Report, c.Frozen = c.Layers[last:], report, frozen
	return os.Rename(merged, work)
}

// KeepLayers removes every layer, complete or not, that needed returns false for. needed must return true for the layers
// of boxes, and for layers that are being captured.
func (l *Launcher) KeepLayers(needed func(layer string) bool) error {
	dirs, err := l.layers.Unneeded(needed)
	errs := []error{err}
	for _, dir := range dirs {
		errs = append(errs, l.trash.Move(dir))
	}
	return errors.Join(errs...)
}
