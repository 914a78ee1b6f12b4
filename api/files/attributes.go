package files

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"boxgate/api/problem"
	"boxgate/api/rest"
)

// The bounds of attributes in a request. The kernel's bound of a name is 255 bytes with its prefix, and file systems bound the values of a
// file together.
const (
	maxAttributes     = 64
	maxAttributeName  = 250
	maxAttributeValue = 4 << 10
)

// attributesBody changes attributes.
type attributesBody struct {
	Path   string            `json:"path" doc:"absolute, or below /workspace/home" example:"src/main.py"`
	Set    map[string]string `json:"set,omitempty" doc:"new values, of 4096 bytes at most, by names without the prefix user."`
	Remove []string          `json:"remove,omitempty" doc:"names of attributes to remove; set and remove have at most 64 names together"`
	User   string            `json:"user,omitempty" doc:"the box's ordinary user (the default), by its name or as boxuser; root; or the IDs UID or UID:GID of the box" example:"root"`
}

// setAttributes handles POST attributes.
func (e *Endpoints) setAttributes(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body attributesBody
	path, err := e.decodePath(w, r, &body, &body.User, &body.Path)
	if err != nil {
		return rest.Reply{}, err
	}
	if err := CheckAttributes(body.Set, body.Remove); err != nil {
		return rest.Reply{}, err
	}
	return e.change(r, body.User, path, func(files Files) error { return files.SetAttributes(path, body.Set, body.Remove) })
}

// CheckAttributes returns an error that names the first attribute that [Files.SetAttributes] cannot set or remove.
func CheckAttributes(set map[string]string, remove []string) error {
	if n := len(set) + len(remove); n == 0 || n > maxAttributes {
		return problem.Invalid("/set", "and remove must have 1 to %d names together", maxAttributes)
	}
	for i, name := range remove {
		if !isAttributeName(name) {
			return problem.Invalid(fmt.Sprintf("/remove/%d", i), "is no name of an attribute, which has 1 to %d bytes without NUL", maxAttributeName)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if !isAttributeName(name) {
			return problem.Invalid("/set", "%q is no name of an attribute, which has 1 to %d bytes without NUL", problem.Clip(name), maxAttributeName)
		}
		if value := set[name]; len(value) > maxAttributeValue || !utf8.ValidString(value) {
			return problem.Invalid("/set", "the value of %q has %d bytes; the limit is %d", problem.Clip(name), len(value), maxAttributeValue)
		}
	}
	return nil
}

func isAttributeName(name string) bool {
	return name != "" && len(name) <= maxAttributeName && !strings.ContainsRune(name, 0) && utf8.ValidString(name)
}
