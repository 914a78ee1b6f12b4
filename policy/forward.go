package policy

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"boxgate/policy/document"
	"boxgate/policy/name"
)

// ForwardURL is a proxy of the operator's that the requests of a rule are sent to, in the place of the server that they are
// for. Only [ParseForward] makes one.
type ForwardURL struct {
	Name name.Name
	Port uint16
	Path string // before the path of each request; "" or without a slash at its end
}

const (
	maxForwardURL = 2048
)

// plainPath is a path that every server reads in the same way.
var plainPath = regexp.MustCompile(`^(/[0-9A-Za-z_~-][0-9A-Za-z._~-]*)*$`)

// ParseForward reads the URL of a proxy: https, a host by its name, optionally a port and a path. The error completes a
// sentence about the URL, and quotes nothing of it.
func ParseForward(text string) (ForwardURL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Host == "" || u.Opaque != "" || len(text) > maxForwardURL:
		return ForwardURL{}, flawError("is not an https URL")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#"):
		return ForwardURL{}, flawError("is not an https URL without credentials, query and fragment")
	}
	f := ForwardURL{Port: name.HTTPSPort, Path: strings.TrimRight(u.EscapedPath(), "/")}
	if f.Name, err = name.Parse(u.Hostname()); err != nil || strings.Contains(u.Host, "[") {
		return ForwardURL{}, flawError("does not give its host by name")
	}
	if text := u.Port(); text != "" || strings.HasSuffix(u.Host, ":") {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return ForwardURL{}, flawError("has no valid port")
		}
		f.Port = uint16(n)
	}
	if !plainPath.MatchString(f.Path) {
		return ForwardURL{}, flawError("has a path of other than letters, digits and '_', '~', '-', '.' between single slashes")
	}
	return f, nil
}

// flawError completes a sentence.
type flawError string

// Error returns the flaw.
func (e flawError) Error() string { return string(e) }

// Authority returns the host, with the port if it is not that of https.
func (f ForwardURL) Authority() string {
	if f.Port == name.HTTPSPort {
		return f.Name.String()
	}
	return f.Name.String() + ":" + strconv.Itoa(int(f.Port))
}

// URL returns the URL, without a slash at its end.
func (f ForwardURL) URL() string { return "https://" + f.Authority() + f.Path }

// url is URL, or "" for nil.
func (f *ForwardURL) url() string {
	if f == nil {
		return ""
	}
	return f.URL()
}

// Target returns where a request with a target, the path and the query, is sent.
func (f ForwardURL) Target(target string) string {
	if !strings.HasPrefix(target, "/") { // the asterisk of OPTIONS
		return f.Path + "/"
	}
	return f.Path + target
}

// ReadForward reads the URL of a proxy.
func ReadForward(at string, v document.Value, ps *document.Problems) *ForwardURL {
	text := v.AsString(at, ps)
	if v.Kind != document.Text {
		return nil
	}
	f, err := ParseForward(text)
	if err != nil {
		ps.Add(at, "%v", err)
	}
	return &f
}
