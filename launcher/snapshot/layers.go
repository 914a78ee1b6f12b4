package snapshot

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"boxgate/internal/lazyregexp"
	"boxgate/launcher/files"
	"boxgate/launcher/image"
)

// Layers is the directory of the snapshot layers of a host.
type Layers struct {
	Dir    string
	Images image.Store // the images below the layers
}

// record describes the image below a layer.
type record struct {
	ImageKey string   `json:"image_key,omitempty"`
	Rootfs   string   `json:"rootfs"`
	Base     []string `json:"base,omitempty"`   // the image's environment
	Size     int64    `json:"size"`             // of the layer alone
	Digest   string   `json:"digest,omitempty"` // of its archive in shared storage
}

// partial is the name suffix of an incomplete layer.
const partial = ".partial"

var validName = lazyregexp.New(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// Path returns the directory of a layer.
func (l Layers) Path(layer string) string { return filepath.Join(l.Dir, layer) }

// Claim returns the directory for a new layer, or an error if its name is invalid or taken.
func (l Layers) Claim(layer string) (work string, err error) {
	if !validName.MatchString(layer) {
		return "", fmt.Errorf("%q is not a valid layer name", layer)
	}
	if _, err := os.Lstat(l.Path(layer)); !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("layer %s: %w", layer, cmp.Or(err, fs.ErrExist))
	}
	return l.Path(layer + partial), nil
}

// Complete renames a layer that is on disk to its final name, and protects its image from removal.
func (l Layers) Complete(layer string, img image.Image, size int64) error {
	return l.complete(layer, img, record{Size: size})
}

// complete does so with a record that lacks the image.
func (l Layers) complete(layer string, img image.Image, r record) error {
	work := l.Path(layer + partial)
	r.ImageKey, r.Rootfs, r.Base = img.Key, img.Rootfs, img.Env
	if err := files.WriteJSON(filepath.Join(work, "layer.json"), r); err != nil {
		return err
	}
	if err := l.Images.Hold(img, work); err != nil {
		return err
	}
	defer l.Images.Release(work)
	if err := os.Rename(work, l.Path(layer)); err != nil {
		return err
	}
	dir, err := os.Open(l.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return errors.Join(l.Images.Hold(img, l.Path(layer)), dir.Sync())
}

func (l Layers) load(layer string) (r record, err error) {
	if !validName.MatchString(layer) {
		return r, fmt.Errorf("%q is not a valid layer name", layer)
	}
	data, err := os.ReadFile(filepath.Join(l.Path(layer), "layer.json"))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("the record of layer %s cannot be read: %w", layer, err)
	}
	return r, nil
}

// Layer describes a complete layer, for a copy of it on another host.
type Layer struct {
	Size   int64  // bytes on disk
	Digest string // of its archive in shared storage; "": it was not there yet
	Image  LayerImage
}

// LayerImage describes the image below a layer. Another host must have the same one.
type LayerImage struct {
	Key    string   `json:"key,omitempty"`    // in the image directory; "": a directory used in place
	Source string   `json:"source,omitempty"` // that the image was made from
	Rootfs string   `json:"rootfs,omitempty"` // with an empty key
	Env    []string `json:"env,omitempty"`
}

// Describe returns a complete layer, or an error.
func (l Layers) Describe(layer string) (Layer, error) {
	r, err := l.load(layer)
	if err != nil {
		return Layer{}, err
	}
	img, err := l.Images.At(r.ImageKey, r.Rootfs)
	if err != nil {
		return Layer{}, err
	}
	of := LayerImage{Key: r.ImageKey, Source: img.Source, Env: r.Base}
	if of.Key == "" {
		of.Rootfs = r.Rootfs
	}
	return Layer{Size: r.Size, Digest: r.Digest, Image: of}, nil
}

// SetDigest records the digest of a layer's archive.
func (l Layers) SetDigest(layer, digest string) error {
	r, err := l.load(layer)
	if err != nil || r.Digest == digest {
		return err
	}
	r.Digest = digest
	return files.WriteJSON(filepath.Join(l.Path(layer), "layer.json"), r)
}

// CompleteCopy completes a copy of a layer of another host, see [Layers.Complete]. of has its size and digest.
func (l Layers) CompleteCopy(layer string, img image.Image, of Layer) error {
	return l.complete(layer, img, record{Size: of.Size, Digest: of.Digest})
}

// Size returns the total size of layers on disk in bytes.
func (l Layers) Size(layers []string) (sum int64, err error) {
	for _, layer := range layers {
		r, err := l.load(layer)
		if err != nil {
			return 0, err
		}
		sum += r.Size
	}
	return sum, nil
}

// Image returns the image below the layers, which must have the same one, and protects it from removal while the directory
// holder exists.
func (l Layers) Image(layers []string, holder string) (img image.Image, err error) {
	for i, layer := range layers {
		r, err := l.load(layer)
		if err != nil {
			return image.Image{}, err
		}
		if i > 0 && img.Rootfs != r.Rootfs {
			return image.Image{}, fmt.Errorf("layer %s belongs to another image", layer)
		}
		if img, err = l.Images.At(r.ImageKey, r.Rootfs); err != nil {
			return image.Image{}, fmt.Errorf("the image that the snapshot was taken over: %w", err)
		}
		img.Env = r.Base
	}
	return img, l.Images.Hold(img, holder)
}

// Trees returns the directories that a box stacks for layers.
func (l Layers) Trees(layers []string) (trees []string) {
	for _, layer := range layers {
		trees = append(trees, Tree(l.Path(layer)))
	}
	return trees
}

// Unneeded returns the directories of the layers, complete or not, that needed returns false for, and releases their
// images.
func (l Layers) Unneeded(needed func(layer string) bool) (dirs []string, err error) {
	entries, err := os.ReadDir(l.Dir)
	for _, e := range entries {
		layer, _, _ := strings.Cut(e.Name(), partial)
		if needed(layer) {
			continue
		}
		dir := l.Path(e.Name())
		l.Images.Release(dir)
		dirs = append(dirs, dir)
	}
	return dirs, err
}
