package launcher

import (
	"cmp"
	"context"
	"path/filepath"

	"boxgate/launcher/image"
)

// Images are the images in an image directory.
type Images = image.Store

// ImageStore returns the images of a launcher with this configuration.
func ImageStore(cfg Config) Images {
	return Images{Dir: cmp.Or(cfg.ImageDir, filepath.Join(cfg.StateDir, "images")), Names: cfg.Images, Reserve: cfg.Reserve}
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
