package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
