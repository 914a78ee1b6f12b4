package config

import "time"

// URLLimits bounds the requests of visitors of public URLs, and their timeouts.
type URLLimits struct {
	Requests          int           `yaml:"requests_per_second"`
	FailedCredentials int           `yaml:"failed_credentials_per_minute"`
	HeaderBytes       Size          `yaml:"header_bytes"`
	HeaderTimeout     time.Duration `yaml:"header_timeout"`
	IdleTimeout       time.Duration `yaml:"idle_timeout"`
	BodyTimeout       time.Duration `yaml:"body_timeout"`
	ConnectTimeout    time.Duration `yaml:"connect_timeout"`
	ResponseTimeout   time.Duration `yaml:"response_timeout"`
}

// DefaultURLLimits are the limits of an empty configuration.
func DefaultURLLimits() URLLimits {
	return URLLimits{
		Requests: 2000, FailedCredentials: 20, HeaderBytes: 64 << 10, HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		BodyTimeout: time.Minute, ConnectTimeout: 10 * time.Second, ResponseTimeout: 5 * time.Minute,
	}
}

// check finds limits that would refuse all requests or never apply: these limits cannot be turned off.
func (l *URLLimits) check(fail func(key, format string, args ...any)) {
	if l.Requests < 1 || l.Requests > MaxCount {
		fail("ingress.limits.requests_per_second", "%d is out of range; use 1 to %d", l.Requests, MaxCount)
	}
	if l.FailedCredentials < 1 || l.FailedCredentials > MaxCount {
		fail("ingress.limits.failed_credentials_per_minute", "%d is out of range; use 1 to %d", l.FailedCredentials, MaxCount)
	}
	if l.HeaderBytes < 4<<10 || l.HeaderBytes > 64<<10 {
		fail("ingress.limits.header_bytes", "%v is out of range; use 4KiB to 64KiB", l.HeaderBytes)
	}
	for _, c := range []struct {
		key  string
		have time.Duration
		most time.Duration
	}{
		{"header_timeout", l.HeaderTimeout, 5 * time.Minute},
		{"idle_timeout", l.IdleTimeout, time.Hour},
		{"body_timeout", l.BodyTimeout, time.Hour},
		{"connect_timeout", l.ConnectTimeout, 5 * time.Minute},
		{"response_timeout", l.ResponseTimeout, 24 * time.Hour},
	} {
		if c.have < time.Second || c.have > c.most {
			fail("ingress.limits."+c.key, "%v is out of range; use 1s to %v", c.have, c.most)
		}
	}
}
