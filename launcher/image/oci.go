package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// platform is the platform of boxes on this host.
var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// referenceSource parses an OCI reference. A tag is pulled once and then not updated.
func referenceSource(text string) (imageSource, error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		return imageSource{}, fmt.Errorf(
			`image %q is neither "debian", "debian-agents", "debian-min", an absolute path nor an OCI reference like docker.io/library/python:3`, text)
	}
	return imageSource{text: text, kind: kindReference, key: imageKey(text, ref.Name())}, nil
}

// unpackLayout unpacks the image for this host's platform from an OCI layout directory.
func unpackLayout(ctx context.Context, dir, rootfs string, progress func(string)) ([]string, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	img, layers, err := allLayers(pickImage(index))
	if err != nil {
		return nil, err
	}
	return unpackImage(ctx, img, layers, rootfs, progress)
}

// pickImage finds the image for this host in an index, which may contain further indexes.
func pickImage(index v1.ImageIndex) (v1.Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range manifest.Manifests {
		if d.Platform != nil && !d.Platform.Satisfies(platform) {
			continue
		}
		switch {
		case d.MediaType.IsImage():
			return index.Image(d.Digest)
		case d.MediaType.IsIndex():
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			if img, err := pickImage(inner); err == nil {
				return img, nil
			}
		}
	}
	return nil, fmt.Errorf("holds no image for %s/%s", platform.OS, platform.Architecture)
}

// allLayers returns the layers of an image in a layout or archive.
func allLayers(img v1.Image, err error) (v1.Image, []v1.Layer, error) {
	if err != nil {
		return nil, nil, err
	}
	layers, err := img.Layers()
	return img, layers, err
}

// unpackImage applies the layers of an image in order and returns the environment of the image's configuration. The layers
// must have the digests in the configuration, and the configuration the digest in the manifest.
func unpackImage(ctx context.Context, img v1.Image, layers []v1.Layer, rootfs string, progress func(string)) ([]string, error) {
	config, err := verifiedConfig(img)
	if err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(layers) {
		return nil, fmt.Errorf("has %d layers; its configuration says %d", len(layers), len(config.RootFS.DiffIDs))
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	u := &unpacker{root: root}
	for i, l := range layers {
		progress(fmt.Sprintf("unpacking layer %d of %d", i+1, len(layers)))
		if err := unpackLayer(ctx, u, l, config.RootFS.DiffIDs[i]); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	return config.Config.Env, nil
}

// verifiedConfig returns the configuration of an image, which must have the digest in the manifest and be for this host.
func verifiedConfig(img v1.Image) (*v1.ConfigFile, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	got, _, err := v1.SHA256(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	if got != manifest.Config.Digest {
		return nil, fmt.Errorf("its configuration has the digest %s; its manifest says %s", got, manifest.Config.Digest)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if p := config.Platform(); p != nil && (p.OS != platform.OS || p.Architecture != platform.Architecture) {
		return nil, fmt.Errorf("is for %s; boxes of this host need %s", p, platform)
	}
	return config, nil
}

func unpackLayer(ctx context.Context, u *unpacker, l v1.Layer, want v1.Hash) error {
	r, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer r.Close()
	digest := sha256.New()
	content := io.TeeReader(r, digest)
	if err := u.layer(ctx, content); err != nil {
		return err
	}
	if _, err = io.Copy(io.Discard, content); err != nil { // the digest includes bytes after the end of the archive
		return err
	}
	if got := hex.EncodeToString(digest.Sum(nil)); want.Algorithm != "sha256" || got != want.Hex {
		return fmt.Errorf("its content has the digest sha256:%s; the image's configuration says %s", got, want)
	}
	return nil
}

// unpackArchive unpacks a tar, which may be gzipped: the output of `docker save`, an OCI layout, or a root file system.
func unpackArchive(ctx context.Context, file, rootfs string, progress func(string)) ([]string, error) {
	open := func() (io.ReadCloser, error) { return openArchive(file) }
	kind, err := archiveKind(open)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "manifest.json":
		img, layers, err := allLayers(tarball.Image(open, nil))
		if err != nil {
			return nil, fmt.Errorf("not a docker-archive with one image: %w", err)
		}
		return unpackImage(ctx, img, layers, rootfs, progress)
	case "oci-layout":
		dir := filepath.Join(filepath.Dir(rootfs), "layout")
		defer os.RemoveAll(dir)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		if err := unpackTar(ctx, open, dir); err != nil {
			return nil, err
		}
		return unpackLayout(ctx, dir, rootfs, progress)
	default:
		progress("unpacking " + file)
		return nil, unpackTar(ctx, open, rootfs)
	}
}

func unpackTar(ctx context.Context, open tarball.Opener, dir string) error {
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return (&unpacker{root: root}).layer(ctx, r)
}

// archiveKind returns the file that identifies the kind of a tar: manifest.json, oci-layout, or "" for a root file system.
func archiveKind(open tarball.Opener) (string, error) {
	r, err := open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	kind := ""
	for tr := tar.NewReader(r); ; {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return kind, nil
		}
		if err != nil {
			return "", fmt.Errorf("not a tar archive: %w", err)
		}
		switch clean := path.Clean(hdr.Name); clean {
		case "manifest.json":
			return clean, nil // docker writes both; its own manifest is the complete one
		case "oci-layout":
			kind = clean
		default:
			if strings.HasPrefix(clean, "usr/") || strings.HasPrefix(clean, "etc/") {
				return "", nil
			}
		}
	}
}

// openArchive opens a file and decompresses gzip.
func openArchive(file string) (io.ReadCloser, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	buffered := bufio.NewReaderSize(f, 1<<16)
	magic, _ := buffered.Peek(2)
	if string(magic) != "\x1f\x8b" {
		return readCloser{buffered, f}, nil
	}
	z, err := gzip.NewReader(buffered)
	if err != nil {
		f.Close()
		return nil, err
	}
	return readCloser{z, f}, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}
