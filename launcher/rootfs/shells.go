package rootfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
)

// profilePath is read by every login shell, through /etc/profile, and environmentPath by PAM (pam_env(8)): by su, sshd and
// cron, which start with an empty environment.
const (
	profilePath     = "/etc/profile.d/boxgate.sh"
	environmentPath = "/etc/environment"
)

// mainProfile reads the directory of profiles, for images without /etc/profile.
const mainProfile = `for file in /etc/profile.d/*.sh; do
  [ -r "$file" ] && . "$file"
done
unset file
`

// trustInShells sets the variables for programs that do not inherit the environment of a command. A variable that is
// already set is kept.
func (b *Root) trustInShells() error {
	profile := bytes.NewBufferString("# The box's certificates, for programs that do not use the system's store.\n")
	lines := new(bytes.Buffer)
	for _, name := range TrustVariables {
		fmt.Fprintf(profile, "export %s=\"${%s:-%s}\"\n", name, name, BundlePath)
		fmt.Fprintf(lines, "%s=%s\n", name, BundlePath)
	}
	if err := b.write(profilePath, profile.Bytes(), 0o644); err != nil {
		return err
	}
	if _, err := b.read("/etc/profile"); errors.Is(err, fs.ErrNotExist) {
		if err := b.write("/etc/profile", []byte(mainProfile), 0o644); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	old, err := b.read(environmentPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(old) > 0 && !bytes.HasSuffix(old, []byte("\n")) {
		old = append(old, '\n')
	}
	old = bytes.TrimPrefix(old, lines.Bytes())                            // of an earlier box with these files
	return b.write(environmentPath, append(lines.Bytes(), old...), 0o644) // the image's own lines come last, and win
}
