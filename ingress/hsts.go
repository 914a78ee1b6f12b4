package ingress

import (
	"strconv"
	"time"
)

// HSTS makes browsers use HTTPS alone for the host of a public URL (RFC 6797). It is sent with every response over
// HTTPS, the gateway's own included; a box's Strict-Transport-Security never is. The zero value sends nothing.
type HSTS struct {
	MaxAge            time.Duration // how long browsers remember it, in whole seconds
	IncludeSubdomains bool          // it applies to hosts below the URL's own too
}

// value returns the value of the field, or "".
func (h HSTS) value() string {
	seconds := int64(h.MaxAge / time.Second)
	if seconds <= 0 {
		return ""
	}
	value := "max-age=" + strconv.FormatInt(seconds, 10)
	if h.IncludeSubdomains {
		value += "; includeSubDomains"
	}
	return value
}

// hstsName is the field's name, as HTTP/2 has it.
const hstsName = "strict-transport-security"
