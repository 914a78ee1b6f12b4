package name

import "strings"

// ServiceZone is the zone of the names of services: hosts and boxes that the operator opens to boxes by name. No other server has a name
// in it, and names in it are never sent to upstream DNS servers.
const ServiceZone = "service.boxgate.internal"

// servicePrefix begins the entry of a service in a policy.
const servicePrefix = "service:"

// maxServiceLabel is the largest length of a service's name in bytes, as of any label (RFC 1035, 2.3.4).
const maxServiceLabel = maxLabelLen

// ParseService returns the host name of a service, such as db.service.boxgate.internal for "db". A service's name begins with a
// lower-case letter, so that no entry "service:{name}" can be a host called service with a port, and contains lower-case letters, digits
// and hyphens.
func ParseService(label string) (Name, error) {
	n, flaw := parseService(label)
	if flaw != "" {
		return Name{}, &syntaxError{input: label, flaw: flaw}
	}
	return n, nil
}

func parseService(label string) (n Name, flaw string) {
	valid := label != "" && len(label) <= maxServiceLabel && 'a' <= label[0] && label[0] <= 'z' && label[len(label)-1] != '-'
	for i := 0; valid && i < len(label); i++ {
		valid = isLDH(label[i]) && label[i] != '_'
	}
	if !valid || strings.HasPrefix(label, punycodePrefix) {
		return Name{}, "is no name of a service: use 1 to 63 lower-case letters, digits and hyphens, a letter first"
	}
	return Name{label + "." + ServiceZone}, ""
}

// IsService reports whether the name is in [ServiceZone], whether or not there is such a service.
func (n Name) IsService() bool {
	cut := len(n.s) - len(ServiceZone)
	return cut >= 0 && n.s[cut:] == ServiceZone && (cut == 0 || n.s[cut-1] == '.')
}

// Service returns the name of the service that the host name belongs to, or "" for other names.
func (n Name) Service() string {
	label, found := strings.CutSuffix(n.s, "."+ServiceZone)
	if !found || strings.Contains(label, ".") {
		return ""
	}
	return label
}

// IsService reports whether the pattern is that of one service: "service:{name}", or its host name.
func (p Pattern) IsService() bool { return p.ok && !p.wild && p.name.Service() != "" }
