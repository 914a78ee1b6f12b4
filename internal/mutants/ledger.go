package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"boxgate/internal/mutants/mutation"
)

// ledger records in a file which mutants were killed and which tests passed without a mutation, keyed by a hash of the
// sources they depend on. An interrupted run resumes where it stopped, and after a change only the affected mutants run
// again. Without a file it does not record.
type ledger struct {
	sources sourceHashes

	mu    sync.Mutex
	file  *os.File
	times map[string]time.Duration // by key
}

// openLedger reads the file at path, or creates it. Each line is a key, the name of a mutant or a test, and its time, separated
// by tabs. An incomplete line is ignored.
func openLedger(path string, s sourceHashes) (*ledger, error) {
	l := &ledger{sources: s, times: map[string]time.Duration{}}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if took, err := time.ParseDuration(fields[len(fields)-1]); err == nil && len(fields) == 3 {
			l.times[fields[0]] = took
		}
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		if _, err := f.WriteString("\n"); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	l.file = f
	return l, nil
}

func (l *ledger) close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// lookup returns the time recorded for a key.
func (l *ledger) lookup(key string) (took time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	took, ok = l.times[key]
	return took, ok
}

func (l *ledger) record(key, what string, took time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	l.times[key] = took
	_, err := fmt.Fprintf(l.file, "%s\t%s\t%s\n", key, what, took.Round(time.Millisecond))
	return err
}

// ofTest returns the key of a test without a mutation.
func (l *ledger) ofTest(t mutation.Test) string {
	if l.sources == nil {
		return ""
	}
	return hash("test", t.String(), l.sources.hashOf(t))
}

// ofMutant returns the key of a mutant. The key does not depend on its name and promises.
func (l *ledger) ofMutant(m mutation.Mutant) string {
	if l.sources == nil {
		return ""
	}
	parts := []string{"mutant", fmt.Sprint(m.Files)}
	for _, t := range m.Tests {
		parts = append(parts, l.ofTest(t))
	}
	return hash(parts...)
}

func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d %s\n", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

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
