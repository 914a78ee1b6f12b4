package urls

import (
	"fmt"
	"slices"
	"strings"

	"boxgate/api/problem"
	"boxgate/policy/name"
)

// mostHostnames bounds the custom domains of one URL, because each may need a certificate.
const mostHostnames = 16

// longestHostname bounds a domain so that the names of its certificate files fit into file names.
const longestHostname = 240

// parseHostnames returns the canonical forms of the requested custom domains. It rejects names that cannot be a domain of
// the caller: single labels, and invalid host names.
func parseHostnames(list []string) ([]name.Name, error) {
	if len(list) > mostHostnames {
		return nil, problem.Invalid("/hostnames", "must have at most %d entries", mostHostnames)
	}
	var names []name.Name
	var problems problem.List
	for i, text := range list {
		pointer := fmt.Sprintf("/hostnames/%d", i)
		host, err := name.Parse(text)
		switch {
		case err != nil:
			problems.Add(pointer, "%v", err)
		case !strings.Contains(host.String(), ".") || strings.Contains(host.String(), "_"):
			problems.Add(pointer, "%q cannot be the name of a website", host)
		case len(host.String()) > longestHostname:
			problems.Add(pointer, "is longer than %d characters", longestHostname)
		case slices.Contains(names, host):
			problems.Add(pointer, "%q is listed twice", host)
		}
		names = append(names, host)
	}
	return names, problems.Err()
}
