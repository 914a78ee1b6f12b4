package secrets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Check checks each source and returns all problems: a file that is unreadable or has no valid value, a variable that
// is not set, a program that is missing or that other users can change. It neither runs commands nor contacts servers,
// because both may have side effects.
func Check(ctx context.Context, sources map[string]Source) error {
	var errs []error
	sources = withDocuments(sources)
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		source := sources[name]
		if len(source.validate(name)) > 0 {
			continue // already reported
		}
		if err := source.check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("secrets.%s: %s: %w", name, source, err))
		}
	}
	return errors.Join(errs...)
}

func (s Source) check(ctx context.Context) error {
	switch {
	case len(s.Command) > 0:
		_, err := findProgram(s.Command[0])
		return err
	case s.Env != "":
		_, err := readVariable(s.Env, s.form())
		return err
	case s.Credential != "" && s.path() == "":
		return nil // only the service receives credentials
	case s.path() != "":
		done := make(chan error, 1)
		go func() {
			_, err := readFile(ctx, s.path(), s.form())
			done <- err
		}()
		select {
		case err := <-done:
			return err
		case <-time.After(s.timeout()):
			return errTimeout
		}
	default:
		return nil
	}
}
