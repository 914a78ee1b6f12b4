package urls

import (
	"fmt"
	"slices"
	"strings"

	"boxgate/api/problem"
	"boxgate/policy"
)

// mostHostnames bounds the domains of one URL: each may cost the gateway a certificate.
const mostHostnames = 16

// longestHostname leaves room for what the files of its certificate are called.
const longestHostname = 240

// parseHostnames returns the canonical forms of the domains that a URL is to have. It refuses what can be no domain of
// the caller's own: single labels, and what is not a host name at all.
func parseHostnames(list []string) ([]policy.Name, error) {
	if len(list) > mostHostnames {
		return nil, problem.Invalid("/hostnames", "must have at most %d entries", mostHostnames)
	}
	var names []policy.Name
	var problems problem.List
	for i, text := range list {
		pointer := fmt.Sprintf("/hostnames/%d", i)
		name, err := policy.ParseName(text)
		switch {
		case err != nil:
			problems.Add(pointer, "%v", err)
		case !strings.Contains(name.String(), ".") || strings.Contains(name.String(), "_"):
			problems.Add(pointer, "%q cannot be the name of a website", name)
		case len(name.String()) > longestHostname:
			problems.Add(pointer, "is longer than %d characters", longestHostname)
		case slices.Contains(names, name):
			problems.Add(pointer, "%q is listed twice", name)
		}
		names = append(names, name)
	}
	return names, problems.Err()
}
