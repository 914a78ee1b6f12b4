package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// npmRelease is npm as published by its makers: one archive of 3 MB, where Debian's npm consists of hundreds of packages.
// It is the newest that runs with the suite's Node. Only an archive with this digest is used, from whatever registry.
var npmRelease = struct{ path, digest string }{
	path:   "npm/-/npm-10.9.4.tgz",
	digest: "OnUG836FwboQIbqtefDNlyR0gTHzIfwRfE3DuiNewBvnMnWEpB0VEXwBlFVgqpNzIgYo/MHh3d2Hel/pszapAA==", // SHA-512
}

const (
	npmRegistry = "https://registry.npmjs.org/"
	npmTimeout  = time.Minute
	maxNpmBytes = 32 << 20
	npmDir      = "usr/local/lib/node_modules/npm"
	// npmConfig lets users who cannot write to /usr/local install packages for themselves.
	npmConfig = "prefix=${HOME}/.local\n"
)

// errNpmDigest: the registry serves another file under the name of the release.
var errNpmDigest = errors.New("npm's archive is not the one that was published: its digest differs")

// fetchNpm downloads npm from the registry in npm's environment variables, or from npm's own.
func fetchNpm(ctx context.Context) ([]byte, error) {
	registry := npmRegistry
	for _, variable := range []string{"npm_config_registry", "NPM_CONFIG_REGISTRY"} {
		if v := os.Getenv(variable); v != "" {
			registry = strings.TrimSuffix(v, "/") + "/"
		}
	}
	ctx, cancel := context.WithTimeout(ctx, npmTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, registry+npmRelease.path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", registry, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxNpmBytes))
	if err != nil {
		return nil, err
	}
	if sum := sha512.Sum512(data); base64.StdEncoding.EncodeToString(sum[:]) != npmRelease.digest {
		return nil, errNpmDigest
	}
	return data, nil
}

// installNpm unpacks npm's archive, in which everything is below "package", into a root file system.
func installNpm(ctx context.Context, root *os.Root, archive []byte) error {
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return fmt.Errorf("npm's archive: %w", err)
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
		return fmt.Errorf("npm's archive: %w", err)
	}
	return errors.Join(
		root.Rename(unpacked+"/package", npmDir), root.RemoveAll(unpacked),
		root.WriteFile(npmDir+"/npmrc", []byte(npmConfig), 0o644),
		root.Symlink("../lib/node_modules/npm/bin/npm-cli.js", "usr/local/bin/npm"),
		root.Symlink("../lib/node_modules/npm/bin/npx-cli.js", "usr/local/bin/npx"),
	)
}
