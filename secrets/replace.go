package secrets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ReplaceError is returned by [Replace] for a source whose value this host does not have: Advice says where to change it.
type ReplaceError struct{ Advice string }

// Error implements error.
func (e *ReplaceError) Error() string { return e.Advice }

// Replace replaces the value in the file of one of the sources, by name. It writes a new file with the owner and mode of the old one beside it,
// and renames it, so that a reader finds the old value or the new one. A symbolic link stays, and the file that it leads to is
// replaced. The value must have the form that the source requires; a trailing line break is not part of it. Replace clears raw.
// For a source that is not a file, the error is a *[ReplaceError].
func Replace(sources map[string]Source, n string, raw []byte) error {
	defer clear(raw)
	s, ok := withDocuments(sources)[n]
	if !ok {
		return ErrUnknown
	}
	if s.File == "" {
		return &ReplaceError{s.replaceAdvice(n)}
	}
	kept := append([]byte(nil), raw...) // valueOf clears its argument
	defer clear(kept)
	if _, err := s.form().valueOf(raw); err != nil {
		return fmt.Errorf("the new value: %w", err)
	}
	path, err := filepath.EvalSymlinks(s.File)
	if err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if err := checkFile(path, info); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return replaceFile(path, info, kept)
}

// replaceFile replaces a file by one with other content.
func replaceFile(path string, old fs.FileInfo, content []byte) (err error) {
	owner, ok := old.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("the owner of the file is unknown")
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".boxgate-secret-") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	defer f.Close()
	if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
		return err
	}
	if err := f.Chmod(old.Mode().Perm()); err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// replaceAdvice says how to replace the value of a source that is not a file.
func (s Source) replaceAdvice(n string) string {
	then := "; then run: gateway secret refresh " + n
	switch {
	case s.Env != "":
		return "its value is the variable " + s.Env + " of the gateway's environment: change it there, and restart the gateway"
	case len(s.Command) > 0:
		return "its value is the output of " + s.Command[0] + ": replace it where that program reads it" + then
	case s.Credential != "":
		return "its value is the systemd credential " + s.Credential + ": replace that, and restart the gateway's service"
	case s.Remote != nil:
		return "its value comes from " + s.Kind + " " + s.Remote.Place() + ": replace it there" + then
	}
	return "its value is in the configuration: change it there, and run: gateway reload"
}
