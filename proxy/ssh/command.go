package ssh

import (
	"errors"
	"slices"
	"strings"

	sshrule "boxgate/rule/ssh"
)

// gitCommand is a command that git sends over SSH: a service and the path of a repository.
type gitCommand struct{ service, path string }

// errNotGit is shown to the box.
var errNotGit = errors.New("this is not a command that git sends: only git-upload-pack, git-receive-pack and git-upload-archive with one quoted path are allowed")

// parseGit reads a command as git writes it: the name of the service, a space, and the path in single quotes. Nothing else is
// a command of git here, although a shell would find the same meaning in other spellings. The characters of a path are those
// that need no escaping in single quotes, so that what is sent on means the same to every shell.
func parseGit(command string) (gitCommand, error) {
	service, quoted, ok := strings.Cut(command, " ")
	if !ok || !slices.Contains(sshrule.GitServices(), service) || len(quoted) < len("'x'") || len(quoted) > maxPath {
		return gitCommand{}, errNotGit
	}
	path, opened := strings.CutPrefix(quoted, "'")
	path, closed := strings.CutSuffix(path, "'")
	if !opened || !closed || strings.ContainsFunc(path, func(r rune) bool { return !isPathRune(r) }) {
		return gitCommand{}, errNotGit
	}
	return gitCommand{service, path}, nil
}

// maxPath is more than the longest name of a repository.
const maxPath = 512

func isPathRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("/._-", r)
}

// String returns the command as git writes it.
func (c gitCommand) String() string { return c.service + " '" + c.path + "'" }

// repo returns the name of the repository for the log.
func (c gitCommand) repo() string { return strings.TrimSuffix(strings.TrimPrefix(c.path, "/"), ".git") }
