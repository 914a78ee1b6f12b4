package trail

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"boxgate/audit/segments"
)

// isDamaged reports whether an error means that the file itself is damaged, so that reading it again would not help.
func isDamaged(err error) bool {
	return errors.Is(err, segments.ErrLine) || errors.Is(err, unix.EIO)
}

// openError explains why a trail cannot be opened and, if its latest entry cannot be read, what to do. The trail is not
// written then: entries after unreadable ones would not be found, and an entry in their place would hide that they
// existed.
func openError(dir string, err error) error {
	file, ok := errors.AsType[*segments.FileError](err)
	if !ok || !isDamaged(err) {
		return fmt.Errorf("the audit trail in %s: %w", dir, err)
	}
	why := "the disk fails"
	if errors.Is(err, segments.ErrLine) {
		why = "the file was changed by something else"
	}
	return fmt.Errorf("the audit trail in %s cannot be continued, because its latest entries cannot be read: %s (%w). Keep a copy of %s, as much of it as can be read, "+
		"and then rename it to %s: the next start continues with the entry before it, and gateway audit verify reports what is missing",
		dir, why, err, file.Segment.Name(), file.Segment.DamagedName())
}
