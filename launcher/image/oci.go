package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// platform is what boxes of this host can run.
var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// referenceSource parses an OCI reference. A tag is pulled once and then not updated.
func referenceSource(text string) (imageSource, error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		return imageSource{}, fmt.Errorf(
			`image %q is neither "debian", an absolute path nor an OCI reference like docker.io/library/python:3`, text)
	}
	return imageSource{text: text, kind: kindReference, key: imageKey(text, ref.Name())}, nil
}

// pullReference fetches an image from its registry, with the credentials of the user's docker configuration if any.
func pullReference(ctx context.Context, text, rootfs string, progress func(string)) ([]string, error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		return nil, err
	}
	progress("pulling " + ref.Name())
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithPlatform(platform),
		remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return nil, fmt.Errorf("cannot be pulled: %w", err)
	}
	return unpackImage(ctx, img, rootfs, progress)
}

// unpackLayout unpacks the image of this host's platform from an OCI layout directory.
func unpackLayout(ctx context.Context, dir, rootfs string, progress func(string)) ([]string, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("not an OCI layout: %w", err)
	}
	img, err := pickImage(index)
	if err != nil {
		return nil, err
	}
	return unpackImage(ctx, img, rootfs, progress)
}

// pickImage finds the image for this host in an index, which may hold further indexes.
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

// unpackImage applies the layers in order and returns the environment of the image's configuration.
func unpackImage(ctx context.Context, img v1.Image, rootfs string, progress func(string)) ([]string, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	u := &unpacker{root: root}
	for i, l := range layers {
		progress(fmt.Sprintf("unpacking layer %d of %d", i+1, len(layers)))
		if err := unpackLayer(ctx, u, l); err != nil {
			return nil, fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	return config.Config.Env, nil
}

func unpackLayer(ctx context.Context, u *unpacker, l v1.Layer) error {
	r, err := l.Uncompressed()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := u.layer(ctx, r); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r) // the digest is verified at the end of the stream
	return err
}

// unpackArchive unpacks a tar, which may be gzipped: what `docker save` writes, an OCI layout, or a root file system.
func unpackArchive(ctx context.Context, file, rootfs string, progress func(string)) ([]string, error) {
	open := func() (io.ReadCloser, error) { return openArchive(file) }
	kind, err := archiveKind(open)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "manifest.json":
		img, err := tarball.Image(open, nil)
		if err != nil {
			return nil, fmt.Errorf("not a docker-archive with one image: %w", err)
		}
		return unpackImage(ctx, img, rootfs, progress)
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

// archiveKind returns the file that identifies the kind of a tar: manifest.json, oci-layout, or "" for a root file
// system.
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
