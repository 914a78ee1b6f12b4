package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"boxgate/config"
)

// UnknownCommand returns the error for an unknown subcommand of cmd, with suggestions.
func UnknownCommand(cmd *cobra.Command, word string) error {
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q for %q", word, cmd.CommandPath())
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return Usagef("%s", text)
}

// FlagError rewrites a flag error in terms of the command line.
func FlagError(cmd *cobra.Command, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && unknown.GetSpecifiedShortnames() == "" {
		return Usagef("unknown flag --%s%s", unknown.GetSpecifiedName(), nearestFlag(cmd, unknown.GetSpecifiedName()))
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return Usagef("--%s: %q is not %s", invalid.GetFlag().Name, invalid.GetValue(), valueOf(invalid.GetFlag()))
	}
	return UsageError(err)
}

// nearestFlag suggests a flag that starts with the same letter as the word.
func nearestFlag(cmd *cobra.Command, word string) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && word != "" && f.Name[0] == word[0] {
			names = append(names, f.Name)
		}
	})
	if len(names) == 0 {
		return ""
	}
	return "; did you mean --" + config.Nearest(word, names) + "?"
}

// valueOf describes the values that a flag accepts.
func valueOf(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "uint16":
		return "a number from 0 to 65535"
	case "int", "int64", "uint", "uint64":
		return "a whole number"
	case "duration":
		return "a duration such as 10m, or 7d"
	case "bool":
		return "true or false"
	}
	return "a value that it takes"
}

// fileError is an error about a file named by the user.
type fileError struct{ error }

func fileErrorf(format string, args ...any) error { return fileError{fmt.Errorf(format, args...)} }

// WriteError explains why a file named by the user cannot be written. err may be about a temporary file next to it.
func WriteError(path string, err error) error {
	_, ofFile := errors.AsType[*fs.PathError](err)
	_, ofLink := errors.AsType[*os.LinkError](err)
	if !ofFile && !ofLink {
		return err
	}
	dir := filepath.Dir(path)
	_, missing := os.Stat(dir)
	number, system := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, fs.ErrNotExist) && errors.Is(missing, fs.ErrNotExist):
		return fileErrorf("%s cannot be written: there is no directory %s; make it with `mkdir -p %s`", path, dir, dir)
	case errors.Is(err, fs.ErrPermission):
		return fileErrorf("%s cannot be written: permission denied", path)
	case system:
		return fileErrorf("%s cannot be written: %w", path, number)
	}
	return fileErrorf("%s cannot be written", path)
}

// FileError explains why a file named by the user cannot be used.
func FileError(err error) error {
	failed, ok := errors.AsType[*fs.PathError](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fileErrorf("there is no file %s", failed.Path)
	case errors.Is(err, fs.ErrPermission):
		return fileErrorf("%s cannot be read: permission denied", failed.Path)
	}
	return fileErrorf("%s cannot be read: %w", failed.Path, failed.Err)
}
