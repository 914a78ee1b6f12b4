package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"boxgate/internal/mutants/mutation"
)

// sourceHashes maps the folder of each package with tests, as tests name it, to a hash of its sources: its own files
// with testdata, the packages of the module that it imports, go.mod, go.sum and the Go release. End-to-end tests also
// depend on the gateway's hash.
type sourceHashes map[string]string

func (s sourceHashes) hashOf(t mutation.Test) string {
	if endsToEnd(t) {
		return s[t.Package] + s[gatewayPackage]
	}
	return s[t.Package]
}

// goPackage is the part of the output of `go list -json` in use.
type goPackage struct {
	ImportPath, Dir  string
	Module           *struct{ Main bool }
	EmbedFiles, Deps []string
}

// hashSources hashes the sources of these mutants' tests.
func hashSources(ctx context.Context, root string, mutants []mutation.Mutant) (sourceHashes, error) {
	folders := map[string]bool{}
	for _, m := range mutants {
		for _, t := range m.Tests {
			folders[t.Package] = true
			if endsToEnd(t) {
				folders[gatewayPackage] = true
			}
		}
	}
	packages, err := listPackages(ctx, root, slices.Sorted(maps.Keys(folders)))
	if err != nil {
		return nil, err
	}
	h := hasher{root, packages, map[string]string{}}
	byDir := map[string]goPackage{}
	for path, p := range packages {
		if strings.HasSuffix(path, ".test") {
			byDir[p.Dir] = p
		} else if _, ok := byDir[p.Dir]; !ok {
			byDir[p.Dir] = p
		}
	}
	out := sourceHashes{}
	for f := range folders {
		parts := []string{runtime.Version(), h.file(filepath.Join(root, "go.mod")), h.file(filepath.Join(root, "go.sum"))}
		dir := filepath.Join(root, f)
		own, err := h.tests(dir)
		if err != nil {
			return nil, err
		}
		out[f] = hash(append(append(parts, own...), h.imported(byDir[dir])...)...)
	}
	return out, nil
}

// listPackages returns packages, their test binaries and all their imports, by import path.
func listPackages(ctx context.Context, root string, folders []string) (map[string]goPackage, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-e", "-test", "-deps", "-json=ImportPath,Dir,Module,EmbedFiles,Deps"}, folders...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	packages := map[string]goPackage{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages, nil
		}
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages[p.ImportPath] = p
	}
}

type hasher struct {
	root     string
	packages map[string]goPackage
	cache    map[string]string // by path of a file
}

// imported returns the hashes of the files of p and of all packages of the module that p depends on.
func (h hasher) imported(p goPackage) []string {
	var parts []string
	for _, path := range append([]string{p.ImportPath}, p.Deps...) {
		path, _, variant := strings.Cut(path, " ") // [x.test]: the same files plus the tests
		q := h.packages[path]
		if q.Module == nil || !q.Module.Main || variant {
			continue
		}
		files, err := filepath.Glob(filepath.Join(q.Dir, "*"))
		if err != nil {
			continue
		}
		for _, e := range q.EmbedFiles {
			files = append(files, filepath.Join(q.Dir, e))
		}
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.go") {
				parts = append(parts, h.file(f))
			}
		}
	}
	return parts
}

// tests returns the hashes of the files of a package's folder and of its testdata.
func (h hasher) tests(dir string) ([]string, error) {
	var parts []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && filepath.Dir(path) == dir && d.Name() != "testdata":
			return fs.SkipDir
		case d.Type().IsRegular():
			parts = append(parts, h.file(path))
		}
		return nil
	})
	return parts, err
}

// file returns a hash of a file's name and content, or "" if it cannot be read, for example because it is a directory.
func (h hasher) file(path string) string {
	if known, ok := h.cache[path]; ok {
		return known
	}
	text, err := os.ReadFile(path)
	if err == nil {
		h.cache[path] = hash(strings.TrimPrefix(path, h.root), string(text))
	}
	return h.cache[path]
}
