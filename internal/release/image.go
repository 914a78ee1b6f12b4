package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"boxgate/launcher/oci"
)

// makeImages builds a container image for each architecture, as an archive for docker load.
func makeImages(ctx context.Context, out string, arches []string) error {
	for _, arch := range arches {
		b, err := build(ctx, gateway, out, arch)
		if err != nil {
			return err
		}
		runtime, err := runtimeFiles(ctx, arch)
		if err != nil {
			return err
		}
		img, err := b.image(runtime)
		if err != nil {
			return err
		}
		version := debianVersion(b.info.Main.Version)
		tag, err := name.NewTag("boxgate:" + strings.NewReplacer("~", "-", "+", "-").Replace(version))
		if err != nil {
			return err
		}
		path := filepath.Join(out, "boxgate_"+version+"_"+arch+".oci.tar")
		if err := tarball.WriteToFile(path, tag, img); err != nil {
			return err
		}
		artifacts = append(artifacts, path)
		fmt.Fprintf(os.Stderr, "%s (docker load -i it, then run %s)\n", path, tag)
	}
	return nil
}

// image builds an image of the gateway and the files it needs to run boxes, without a shell or a package manager.
func (b binary) image(runtime []file) (v1.Image, error) {
	program, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	bill, err := b.bill()
	if err != nil {
		return nil, err
	}
	own := []file{
		{path: "usr/bin/gateway", mode: 0o755, data: program}, {path: "usr/share/doc/boxgate/boxgate.cdx.json", mode: 0o644, data: bill},
		{path: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/usr/sbin/nologin\n")},
		{path: "etc/group", mode: 0o644, data: []byte("root:x:0:\n")},
		{path: "tmp/", mode: 0o1777}, {path: "var/lib/boxgate/", mode: 0o700}, {path: "run/", mode: 0o755}, {path: "root/", mode: 0o700},
	}
	img := empty.Image
	for _, files := range [][]file{runtime, own} {
		layer, err := layerOf(files, b.date)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: b.date}, CreatedBy: "boxgate"}}); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", b.arch, v1.Time{Time: b.date}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/gateway"}, Cmd: []string{"serve"}, WorkingDir: "/",
		// The debian image cannot be built in this container, so boxes use a pulled one by default.
		Env:     []string{"PATH=/usr/bin:/usr/sbin:/bin:/sbin", "BOXGATE_LAUNCHER_IMAGES=default=docker.io/library/debian:stable-slim"},
		Volumes: map[string]struct{}{"/var/lib/boxgate": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title": "boxgate", "org.opencontainers.image.version": b.info.Main.Version,
			"org.opencontainers.image.revision": setting(b.info, "vcs.revision"), "org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(img, config)
}

// file is a file of an image; a path that ends with a slash is a directory.
type file struct {
	path, link string
	mode       int64
	data       []byte
}

// layerOf writes a layer with the given files and their parent directories, owned by root and with the same
// modification time.
func layerOf(files []file, date time.Time) (v1.Layer, error) {
	files = withParents(files)
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.data)), Linkname: f.link, ModTime: date, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if strings.HasSuffix(f.path, "/") {
			h.Typeflag = tar.TypeDir
		}
		if f.link != "" {
			h.Typeflag = tar.TypeSymlink
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil })
}

func withParents(files []file) []file {
	known := map[string]bool{}
	for _, f := range files {
		known[f.path] = true
	}
	for _, f := range slices.Clone(files) {
		for dir := parent(f.path); dir != ""; dir = parent(dir) {
			if !known[dir] {
				known[dir] = true
				files = append(files, file{path: dir, mode: 0o755})
			}
		}
	}
	return files
}

// parent returns the directory above a path, with a slash, or "" at the top.
func parent(path string) string {
	dir := filepath.Dir(strings.TrimSuffix(path, "/"))
	if dir == "." {
		return ""
	}
	return dir + "/"
}

// runtimePackages are the Debian packages in an image: the OCI runtime, the libraries it is linked with, and the public
// root certificates.
var runtimePackages = []string{oci.ByName(oci.Default).Package, "libc6", "libseccomp2", "ca-certificates"}

// runtimeFiles returns the files of those packages needed at run time, in the current version of the archive.
func runtimeFiles(ctx context.Context, arch string) ([]file, error) {
	dir := debs
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "boxgate-oci-"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		cmd := exec.CommandContext(ctx, "dist/download.sh", append([]string{dir, arch}, runtimePackages...)...)
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("dist/download.sh: %w", err)
		}
	}
	list, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	// Packages may have the same file below / or below /usr, depending on the release.
	files := []file{{path: "lib", link: "usr/lib"}, {path: "lib64", link: "usr/lib64"}, {path: "bin", link: "usr/bin"}, {path: "sbin", link: "usr/sbin"}}
	var roots bytes.Buffer
	for _, deb := range list {
		content, err := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb).Output()
		if err != nil {
			return nil, fmt.Errorf("dpkg-deb %s: %w", deb, err)
		}
		more, err := needed(content, &roots)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	return append(files, file{path: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: roots.Bytes()}), nil
}

// needed returns the files of a package needed at run time and their licenses, and appends certificates to roots.
func needed(archive []byte, roots *bytes.Buffer) (files []file, err error) {
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		path := strings.TrimPrefix(h.Name, "./")
		if !strings.HasPrefix(path, "usr/") {
			path = "usr/" + path
		}
		data, err := io.ReadAll(r)
		switch {
		case err != nil:
			return nil, err
		case strings.HasPrefix(path, "usr/share/ca-certificates/mozilla/") && h.Typeflag == tar.TypeReg:
			roots.Write(data)
		case isNeeded(path) && h.Typeflag == tar.TypeReg:
			files = append(files, file{path: path, mode: h.Mode, data: data})
		case isNeeded(path) && h.Typeflag == tar.TypeSymlink:
			files = append(files, file{path: path, mode: 0o777, link: h.Linkname})
		}
	}
}

// isNeeded selects libraries, the runtime and their licenses.
func isNeeded(path string) bool {
	switch dir, name := filepath.Split(path); {
	case strings.HasSuffix(dir, "/gconv/"), strings.Contains(dir, "/audit/"):
		return false
	case strings.HasPrefix(dir, "usr/lib"):
		return strings.Contains(name, ".so")
	case dir == "usr/sbin/", dir == "usr/bin/":
		return name == oci.Default
	default:
		return strings.HasPrefix(dir, "usr/share/doc/") && name == "copyright"
	}
}
