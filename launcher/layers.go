package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"

	"boxgate/launcher/image"
	"boxgate/launcher/snapshot"
)

// Layer describes a complete layer, for a copy of it on another host.
type Layer = snapshot.Layer

// LayerImage describes the image below a layer.
type LayerImage = snapshot.LayerImage

// ErrOtherImage means that this host cannot have the image that a layer was taken over.
var ErrOtherImage = errors.New("this host does not have the image that the snapshot was taken over")

// Layer returns a complete layer, or an error.
func (l *Launcher) Layer(layer string) (Layer, error) { return l.layers.Describe(layer) }

// SetLayerDigest records the digest of a layer's archive.
func (l *Launcher) SetLayerDigest(layer, digest string) error {
	return l.layers.SetDigest(layer, digest)
}

// ArchiveLayer writes the archive of a layer. Each call writes the same bytes.
func (l *Launcher) ArchiveLayer(ctx context.Context, layer string, w io.Writer) error {
	if _, err := l.layers.Describe(layer); err != nil {
		return err
	}
	return snapshot.Archive(ctx, l.layers.Path(layer), w)
}

// UnarchiveLayer makes a layer from an archive, over the image that it was taken over. r must fail at its end if the archive is not the
// expected one: then there is no layer. grow is called before n more bytes are written, and its error ends the call.
func (l *Launcher) UnarchiveLayer(ctx context.Context, layer string, as Layer, r io.Reader, grow func(n int64) error) (err error) {
	img, err := l.imageBelow(ctx, as.Image)
	if err != nil {
		return err
	}
	work, err := l.layers.Claim(layer)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.trash.Move(work), l.trash.Move(l.layers.Path(layer)))
		}
	}()
	if err := l.trash.Move(work); err != nil { // of an interrupted call
		return err
	}
	terms := l.captures.Terms
	terms.Grow = grow
	report, err := snapshot.Unarchive(ctx, r, work, terms)
	if err != nil {
		return err
	}
	return l.layers.CompleteCopy(layer, img, Layer{Size: report.Size, Digest: as.Digest})
}

// imageBelow returns the image of a layer from another host, and makes it ready if it can be pulled or built under the same key.
func (l *Launcher) imageBelow(ctx context.Context, of LayerImage) (image.Image, error) {
	img, err := l.images.At(of.Key, of.Rootfs)
	if err != nil && of.Key != "" && !image.IsPath(of.Source) { // a path names files of the other host
		if err = l.images.Ensure(ctx, of.Source, func(string) {}); err == nil {
			img, err = l.images.At(of.Key, of.Rootfs)
		}
	}
	if err != nil {
		return image.Image{}, fmt.Errorf("%w, %s: %w", ErrOtherImage, of.Source, err)
	}
	img.Env = of.Env
	return img, nil
}
