package learn

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"

	"boxgate/policy"
	"boxgate/policy/name"
)

// wildcardFrom is how many different labels directly below a name lead to a wildcard for it.
const wildcardFrom = 5

// zone is a name on one port whose names below were seen.
type zone struct {
	below  string // the name, without "*."
	port   uint16
	labels map[string]bool // directly below it
}

// entry formats the wildcard for all names below.
func (z *zone) entry() string { return "*." + Destination{Name: z.below, Port: z.port}.entry() }

// wildcards returns the lines for hosts. Names below one registrable domain, or below a name in it, become a wildcard if five of its
// labels were seen on a port. A public suffix, such as github.io, whose names have different owners, never becomes one. Nor does a name above
// a suffix, above a host that was left out, or within a denied entry that yields to more specific ones. Lines are sorted by entry.
func wildcards(now policy.Spec, hosts []*host, apart []Apart) []Line {
	zones := map[Destination]*zone{}
	for _, h := range hosts {
		label, parent, ok := strings.Cut(h.Name, ".")
		if !ok || !ownedByOne(parent) {
			continue
		}
		key := Destination{Name: parent, Port: h.Port}
		if zones[key] == nil {
			zones[key] = &zone{parent, h.Port, map[string]bool{}}
		}
		zones[key].labels[label] = true
	}
	var denied []name.Pattern
	if now.Precedence == policy.PrecedenceSpecific {
		denied = patterns(now.DeniedDomains...)
	}
	maps.DeleteFunc(zones, func(_ Destination, z *zone) bool {
		wild, err := name.ParsePattern(z.entry())
		return err != nil || len(z.labels) < wildcardFrom || slices.ContainsFunc(denied, func(d name.Pattern) bool { return d.Covers(wild) }) ||
			slices.ContainsFunc(apart, func(a Apart) bool { p, err := name.ParsePattern(a.Entry); return err == nil && wild.Covers(p) })
	})
	lines := map[string]*Line{}
	for _, h := range hosts {
		wild := coveringZone(zones, h)
		if wild == nil {
			*lineOf(lines, h.entry()) = h.line()
			continue
		}
		l := lineOf(lines, wild.entry())
		l.merge(h.Evidence)
		if l.NameN++; len(l.Names) < maxNames {
			l.Names = append(l.Names, h.Name)
		}
	}
	out := make([]Line, 0, len(lines))
	for _, entry := range slices.Sorted(maps.Keys(lines)) {
		out = append(out, *lines[entry])
	}
	return out
}

// coveringZone returns the highest zone that covers a host, or nil.
func coveringZone(zones map[Destination]*zone, h *host) (highest *zone) {
	for at := h.Name; ; {
		_, parent, ok := strings.Cut(at, ".")
		if !ok {
			return highest
		}
		if z := zones[Destination{Name: parent, Port: h.Port}]; z != nil {
			highest = z
		}
		at = parent
	}
}

// shared are registrable domains with names of different owners at some place below, such as s3.amazonaws.com. The list of public suffixes
// cannot be searched for them.
var shared = []string{
	"aliyuncs.com", "amazonaws.com", "amazonaws.com.cn", "appspot.com", "azure.com", "azure.net", "cloudflare.net", "digitaloceanspaces.com", "fastly.net", "google.com",
	"googleapis.com", "googleusercontent.com", "ibm.com", "linode.com", "microsoft.com", "myqcloud.com", "oraclecloud.com", "windows.net", "yandexcloud.net",
}

// ownedByOne reports whether all names below one have the same owner: it is a registrable domain, or below one.
func ownedByOne(domain string) bool {
	n, err := name.Parse(domain)
	if err != nil || !n.IsPublic() {
		return false
	}
	registrable, err := publicsuffix.EffectiveTLDPlusOne(domain)
	return err == nil && !slices.Contains(shared, registrable)
}

// telemetry are services to which programs report their use and their errors.
var telemetry = patterns(
	"*.sentry.io", "*.ingest.sentry.io", "*.segment.io", "*.segment.com", "*.amplitude.com", "*.mixpanel.com", "*.posthog.com", "*.statsig.com",
	"*.statsigapi.net", "*.launchdarkly.com", "*.bugsnag.com", "*.rollbar.com", "*.honeycomb.io", "*.newrelic.com", "*.nr-data.net",
	"*.datadoghq.com", "*.datadoghq.eu", "*.browser-intake-datadoghq.com", "*.google-analytics.com", "*.googletagmanager.com",
	"*.app-measurement.com", "*.doubleclick.net", "*.applicationinsights.azure.com", "dc.services.visualstudio.com", "*.vortex.data.microsoft.com",
	"*.events.data.microsoft.com", "*.crashlytics.com", "*.scarf.sh", "*.checkpoint-api.hashicorp.com", "checkpoint-api.hashicorp.com",
)

// telemetryLabels are first labels that hosts for such reports have.
var telemetryLabels = []string{"telemetry", "analytics", "metrics-intake", "crash-reports", "stats-intake"}

func patterns(list ...string) (out []name.Pattern) {
	for _, s := range list {
		if p, err := name.ParsePattern(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// isTelemetry reports whether a host receives reports of programs rather than serving them.
func isTelemetry(n name.Name, port uint16) bool {
	label, _, _ := strings.Cut(n.String(), ".")
	return slices.Contains(telemetryLabels, label) || slices.ContainsFunc(telemetry, func(p name.Pattern) bool { return p.Match(n, port) })
}
