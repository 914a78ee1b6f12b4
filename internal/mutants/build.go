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
	"sync"
	"syscall"

	"boxgate/internal/mutants/mutation"
)

// The gateway of end-to-end tests is a separate program, whose path is in an environment variable.
const (
	endToEnd        = "./e2e/"
	gatewayPackage  = "./e2e/harness/gateway"
	gatewayVariable = "GATEWAY_TEST_BINARY"
)

// builder builds the test binaries and the gateway.
type builder struct {
	root string
	dir  string // scratch

	union   *mutation.Union // contains most mutants
	overlay string          // path of the overlay file of union

	mu       sync.Mutex
	programs map[string]func() (string, error) // by package: path of the program built from union
}

// build is the programs and the environment for the tests of one mutant.
type build struct {
	tests       map[string]string // path of the test binary by package
	environment []string          // in addition to the environment of the tests
	temporary   []string          // files to remove afterwards
}

func (b build) remove() {
	for _, path := range b.temporary {
		_ = os.Remove(path)
	}
}

// newBuilder unites the mutants and compiles the mutated packages. Mutants that cannot be united, or do not compile,
// are built separately.
func newBuilder(ctx context.Context, root, dir string, mutants []mutation.Mutant) (*builder, error) {
	b := &builder{root: root, dir: dir, programs: map[string]func() (string, error){}}
	module, err := b.goCommand(ctx, "list", "-m").Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m: %w", err)
	}
	leave := map[string]bool{}
	for {
		if b.union, err = mutation.NewUnion(root, strings.TrimSpace(string(module)), mutants, leave); err != nil {
			return nil, err
		}
		folder := filepath.Join(dir, fmt.Sprintf("union-%d", len(leave)))
		if err := os.Mkdir(folder, 0o700); err != nil {
			return nil, err
		}
		replace, err := b.union.Write(root, folder)
		if err != nil {
			return nil, err
		}
		if b.overlay, err = writeOverlay(folder, replace); err != nil {
			return nil, err
		}
		args := []string{"build", "-overlay", b.overlay}
		for _, p := range b.union.Packages() {
			args = append(args, "./"+p)
		}
		out, err := b.goCommand(ctx, args...).CombinedOutput()
		if err == nil {
			return b, nil
		}
		blamed := b.union.Blamed(out)
		if len(blamed) == 0 {
			return nil, fmt.Errorf("the mutated packages do not build: %w\n%s", err, tail(out))
		}
		for _, name := range blamed {
			leave[name] = true
		}
	}
}

// printLeft prints the mutants that are built separately, which takes a minute each.
func (b *builder) printLeft(out io.Writer, mutants []mutation.Mutant) {
	for _, m := range mutants {
		if !b.union.Has(m) {
			fmt.Fprintf(out, "alone     %s: changes more than bodies of functions, so all is compiled for it anew\n", m.Name)
		}
	}
}

func writeOverlay(dir string, replace map[string]string) (path string, err error) {
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, data, 0o600)
}

// original returns the programs for a test without a mutation.
func (b *builder) original(ctx context.Context, t mutation.Test) (build, error) {
	test, err := b.program(ctx, t.Package)
	if err != nil {
		return build{}, err
	}
	out := build{tests: map[string]string{t.Package: test}}
	if endsToEnd(t) {
		gateway, err := b.program(ctx, gatewayPackage)
		if err != nil {
			return build{}, err
		}
		out.environment = []string{gatewayVariable + "=" + gateway}
	}
	return out, nil
}

// program returns the path of a program of union: a package's test binary, or the gateway. It is built once.
func (b *builder) program(ctx context.Context, pkg string) (string, error) {
	b.mu.Lock()
	f := b.programs[pkg]
	if f == nil {
		to := filepath.Join(b.dir, fmt.Sprintf("%d.program", len(b.programs)))
		f = sync.OnceValues(func() (string, error) { return to, b.compile(ctx, pkg, to, b.overlay) })
		b.programs[pkg] = f
	}
	b.mu.Unlock()
	return f()
}

// mutant returns the programs for the tests of m. The programs and the mutated files are written to dir.
func (b *builder) mutant(ctx context.Context, m mutation.Mutant, dir string) (build, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return build{}, err
	}
	replace, err := m.Overlay(b.root, dir)
	if err != nil {
		return build{}, err
	}
	overlay, err := writeOverlay(dir, replace)
	if err != nil {
		return build{}, err
	}
	out := build{tests: map[string]string{}}
	out.environment = []string{"GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay)} // for tests that build programs
	packages := []string{}
	for _, t := range m.Tests {
		packages = append(packages, t.Package)
	}
	if slices.ContainsFunc(m.Tests, endsToEnd) {
		packages = append(packages, gatewayPackage)
	}
	for i, pkg := range packages {
		if out.tests[pkg] != "" {
			continue
		}
		to := filepath.Join(dir, fmt.Sprintf("%d.program", i))
		if err := b.mutated(ctx, m, pkg, to, overlay); err != nil {
			return build{}, fmt.Errorf("the mutant: %w", err)
		}
		out.tests[pkg], out.temporary = to, append(out.temporary, to)
		if pkg == gatewayPackage {
			out.environment = append(out.environment, gatewayVariable+"="+to)
		}
	}
	return out, nil
}

// mutated writes a program that contains the mutation.
func (b *builder) mutated(ctx context.Context, m mutation.Mutant, pkg, to, overlay string) error {
	if !b.union.Has(m) {
		return b.compile(ctx, pkg, to, overlay)
	}
	from, err := b.program(ctx, pkg)
	if err != nil {
		return err
	}
	program, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	program, found, err := b.union.Patch(program, m)
	if err != nil {
		return err
	}
	if !found && (pkg == gatewayPackage || !strings.HasPrefix(pkg, endToEnd)) {
		return fmt.Errorf("the tests of %s do not contain a package that is mutated", pkg)
	}
	// A process forked while the file is open for writing inherits the descriptor until execve. Until then executing
	// the file fails with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(to, program, 0o755) // users of boxes execute it through /proc/self/exe
}

// compile builds the test binary of a package, or the gateway.
func (b *builder) compile(ctx context.Context, pkg, to, overlay string) error {
	args := []string{"test", "-c", "-vet=off"}
	if pkg == gatewayPackage {
		args = []string{"build"}
	}
	args = append(args, "-buildvcs=false", "-ldflags=-s -w", "-overlay", overlay, "-o", to, pkg)
	out, err := b.goCommand(ctx, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("the tests of %s do not build: %w\n%s", pkg, err, tail(out))
	}
	if _, err := os.Stat(to); err != nil {
		return fmt.Errorf("%s has no tests", pkg)
	}
	return nil
}

func (b *builder) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.root
	return cmd
}

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
