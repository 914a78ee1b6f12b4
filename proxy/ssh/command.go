package ssh

import (
	"errors"
	"slices"
	"strings"

	sshrule "boxgate/rule/ssh"
)

// gitCommand is a command that git runs over SSH: a service and the path of a repository.
type gitCommand struct{ service, path string }

// errNotGit is shown to the box.
var errNotGit = errors.New("this is not a command that git sends: only git-upload-pack, git-receive-pack and git-upload-archive with one quoted path are allowed")

// parseGit parses a command in exactly the form that git sends: the service, a space, and the path in single quotes. Other
// spellings are rejected, even if a shell would treat them alike. The path contains only characters that need no escaping
// in single quotes, so every shell on the server reads the command that was judged.
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

// maxPath is the longest accepted path in bytes; names of repositories are shorter.
const maxPath = 512

func isPathRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("/._-", r)
}

// String returns the command as git writes it.
func (c gitCommand) String() string { return c.service + " '" + c.path + "'" }

// repo returns the repository's name for the log.
func (c gitCommand) repo() string { return strings.TrimSuffix(strings.TrimPrefix(c.path, "/"), ".git") }
