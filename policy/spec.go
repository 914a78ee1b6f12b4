package policy

// Mode is the kind of a policy.
type Mode string

// The modes.
const (
	ModeAllowAll Mode = "allow-all"
	ModeDenyAll  Mode = "deny-all"
	ModeCustom   Mode = "custom"
)

// DNSMode says which names the DNS server resolves when the mode is custom.
type DNSMode string

// The DNS modes. The empty value takes the default: strict when allowed_domains is given, resolve when it is not.
const (
	DNSStrict  DNSMode = "strict"  // only names that may be reached are sent upstream
	DNSResolve DNSMode = "resolve" // other names too, A and AAAA only, answers limited to allowed_cidrs
)

// Spec is a policy as written, in the dialect of the admin API.
type Spec struct {
	Mode           Mode          `json:"mode"`
	AllowedDomains []string      `json:"allowed_domains,omitempty"`
	DeniedDomains  []string      `json:"denied_domains,omitempty"`
	AllowedCIDRs   []string      `json:"allowed_cidrs,omitempty"`
	DeniedCIDRs    []string      `json:"denied_cidrs,omitempty"`
	DNS            DNSMode       `json:"dns,omitempty"`
	Rules          []RequestRule `json:"rules,omitempty"`
}

// RequestRule judges requests on intercepted hosts. The first rule that matches decides; none matches: allow.
// Empty Methods or Paths match every method or path. A path ending in "*" matches by prefix, else exactly.
type RequestRule struct {
	Hosts   []string `json:"hosts"`
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	Action  string   `json:"action"` // "allow" or "deny"
}
