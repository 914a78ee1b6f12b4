package ingress

import (
	"strconv"
	"time"
)

// HSTS makes browsers use only HTTPS for the host of a public URL (RFC 6797). It is sent with every response over HTTPS,
// including the gateway's own. A box's Strict-Transport-Security is dropped. The zero value sends no field.
type HSTS struct {
	MaxAge            time.Duration // how long browsers remember it, in whole seconds
	IncludeSubdomains bool          // it also applies to hosts below the URL's
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

// hstsName is the field's name in HTTP/2.
const hstsName = "strict-transport-security"
