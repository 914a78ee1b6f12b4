package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"boxgate/internal/mutants/mutation"
)

// changes are the differences from a revision, including uncommitted ones.
type changes struct {
	mutants  map[string]bool     // by name
	packages map[string]bool     // by folder: Go files except tests
	tests    map[string][]string // by folder: the tests in test files
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)

// changesSince returns the differences from a revision.
func changesSince(ctx context.Context, root, revision string) (*changes, error) {
	files, err := git(ctx, root, "diff", "--name-only", "--relative", "-z", "--end-of-options", revision, "--")
	if err != nil {
		return nil, err
	}
	added, err := git(ctx, root, "ls-files", "--others", "--exclude-standard", "-z")
	if err != nil {
		return nil, err
	}
	c := changes{map[string]bool{}, map[string]bool{}, map[string][]string{}}
	for _, f := range append(files, added...) {
		name, isMutant := strings.CutPrefix(f, "mutants/")
		switch folder := path.Dir(f); {
		case isMutant:
			c.mutants[strings.TrimSuffix(name, ".txtar")] = true
		case strings.HasSuffix(f, "_test.go"):
			text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(f)))
			if err != nil && !os.IsNotExist(err) { // deleted
				return nil, err
			}
			for _, m := range testFunc.FindAllSubmatch(text, -1) {
				c.tests[folder] = append(c.tests[folder], string(m[1]))
			}
		case path.Ext(f) == ".go":
			c.packages[folder] = true
		}
	}
	return &c, nil
}

// touch reports whether m, a package that it mutates or one of its tests has changed.
func (c *changes) touch(m mutation.Mutant) bool {
	return c.mutants[m.Name] ||
		slices.ContainsFunc(m.Packages(), func(p string) bool { return c.packages[p] }) ||
		slices.ContainsFunc(m.Tests, func(t mutation.Test) bool {
			return slices.ContainsFunc(c.tests[path.Clean(t.Package)], t.Matches)
		})
}

// git returns the NUL-terminated names printed by a git command.
func git(ctx context.Context, root string, args ...string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(problem.String()))
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 }), nil
}
