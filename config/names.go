package config

import (
	"fmt"

	"boxgate/policy"
)

// Values of [Ingress] Names.
const (
	namesFlat   = "flat"
	namesNested = "nested"
)

// HostName returns the host name of the public URL of a box's port: {box}-{port}.{domain}, or {port}.{box}.{domain} if
// names are nested. Nested, the URLs of each box have their own parent domain.
func (i Ingress) HostName(id policy.BoxID, port uint16) string {
	if i.Names == namesNested {
		return fmt.Sprintf("%d.%s.%s", port, id, i.Domain)
	}
	return fmt.Sprintf("%s-%d.%s", id, port, i.Domain)
}

func (i Ingress) checkNames(fail func(key, format string, args ...any)) {
	switch {
	case i.Names != namesFlat && i.Names != namesNested:
		fail("ingress.names", "%q is unknown; use %s for {box}-{port}.{domain}, or %s for {port}.{box}.{domain}", i.Names, namesFlat, namesNested)
	case i.Names == namesNested && i.TLS.Mode == "files":
		fail("ingress.names", "a certificate from files cannot cover the domains of all boxes; use %s, or ingress.tls.mode acme or internal", namesFlat)
	}
}
