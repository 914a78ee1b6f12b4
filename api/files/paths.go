package files

import (
	"path"
	"strings"
	"unicode/utf8"

	"boxgate/api"
	"boxgate/api/problem"
)

// maxPath is the longest path that the kernel accepts.
const maxPath = 4095

// resolve makes a path absolute. It leaves ".." to the box, because the part before it may be a link. If empty is set, an
// empty path stands for the workspace.
func resolve(name, text string, empty bool) (string, error) {
	switch {
	case text == "" && empty:
		return api.Workspace, nil
	case text == "":
		return "", problem.Invalid("/"+name, "is missing: name a file of the box, absolute or below %s", api.Workspace)
	case strings.ContainsRune(text, 0):
		return "", problem.Invalid("/"+name, "must not contain NUL")
	}
	if !strings.HasPrefix(text, "/") {
		text = api.Workspace + "/" + text
	}
	if len(text) > maxPath {
		return "", problem.Invalid("/"+name, "has %d bytes; the limit is %d", len(text), maxPath)
	}
	return text, nil
}

// displayPath formats a path for a response.
func displayPath(text string) string {
	return strings.ToValidUTF8(path.Clean(text), string(utf8.RuneError))
}
