package urls

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"boxgate/policy/name"
)

// checkOrigin requires an origin as browsers serialize it (RFC 6454, section 6.2): a scheme, a host in lower case, and a
// port unless it is the scheme's default. For other forms, the error includes the correct one if possible.
func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil {
		return errors.New("is not an origin such as https://app.example.org")
	}
	want, err := canonicalOrigin(u)
	if err != nil {
		return err
	}
	if want != origin {
		return fmt.Errorf("is not written as browsers do; use %q", want)
	}
	return nil
}

func canonicalOrigin(u *url.URL) (string, error) {
	host, port := u.Hostname(), u.Port()
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.String()
		if addr.Is6() {
			host = "[" + host + "]"
		}
	} else {
		hostName, err := name.Parse(host)
		if err != nil {
			return "", errors.New("does not have the name of a host")
		}
		host = hostName.String()
	}
	if port == "" && strings.HasSuffix(u.Host, ":") || port == map[string]string{"http": "80", "https": "443"}[u.Scheme] {
		port = ""
	}
	if port != "" {
		host = strings.Trim(host, "[]")
		return u.Scheme + "://" + net.JoinHostPort(host, port), nil
	}
	return u.Scheme + "://" + host, nil
}
