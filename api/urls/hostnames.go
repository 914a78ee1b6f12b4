package urls

import (
	"fmt"
	"slices"
	"strings"

	"boxgate/api/problem"
	"boxgate/policy/name"
)

// mostHostnames bounds the domains of one URL: each may cost the gateway a certificate.
const mostHostnames = 16

// longestHostname leaves room for what the files of its certificate are called.
const longestHostname = 240

// parseHostnames returns the canonical forms of the domains that a URL is to have. It refuses what can be no domain of
// the caller's own: single labels, and what is not a host name at all.
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
