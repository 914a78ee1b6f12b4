package rootfs

import (
	"errors"
	"io/fs"
	"strings"
)

// GitIdentity is the author of commits in a box, unless the configuration of a user or repository sets another.
type GitIdentity struct{ Name, Email string }

const (
	gitConfig = "/etc/gitconfig"
	gitBegin  = "# Begin of what the gateway wrote\n"
	gitEnd    = "# End of what the gateway wrote\n"
)

// writeGit writes the identity into git's system configuration, and replaces an earlier one. The rest of the file stays.
func (b *Root) writeGit(is GitIdentity) error {
	old, err := b.read(gitConfig)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.write(gitConfig, []byte(is.insertInto(string(old))), 0o644)
}

// insertInto puts the identity at the end of a configuration: of several values the last one counts.
func (is GitIdentity) insertInto(config string) string {
	if before, rest, ok := strings.Cut(config, gitBegin); ok {
		_, after, _ := strings.Cut(rest, gitEnd)
		config = before + after
	}
	if config != "" && !strings.HasSuffix(config, "\n") {
		config += "\n"
	}
	if is == (GitIdentity{}) {
		return config
	}
	return config + gitBegin + "[user]\n\tname = " + gitValue(is.Name) + "\n\temail = " + gitValue(is.Email) + "\n" + gitEnd
}

// gitValue quotes a value of a configuration; see git-config(1), "Syntax".
func gitValue(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(s) + `"`
}
