package api

import (
	"encoding/json"
	"time"

	"boxgate/policy"
)

// PolicyVersion tells who made one version of the policy of a box, when and by what, and when it was in force.
type PolicyVersion struct {
	Version uint64    `json:"version" doc:"as policy_version in decisions"`
	MadeAt  time.Time `json:"made_at"`
	Cause   string    `json:"cause" enum:"create set approved named_policy lease_begun lease_ended lease_expired configuration restore upgrade" doc:"what made it"`
	KeyID   string    `json:"key_id,omitempty" doc:"ID of the API key; of expired leases: of the key that made them"`
	Key     string    `json:"key,omitempty" doc:"its name at that time"`
	Role    string    `json:"role,omitempty"`
	Remote  string    `json:"remote,omitempty" doc:"address of the caller, or unix with the ID and name of the user, and of the user who logged in and became root; box-creator and one-box keys see only their own"`
	Call    string    `json:"call,omitempty" doc:"method and route of the call"`
	Result  string    `json:"result,omitempty" enum:"in_force rolled_back interrupted" doc:"rolled_back or interrupted: it may have decided for a moment; absent: not complete yet"`
	Since   time.Time `json:"in_force_since,omitzero"`
	Until   time.Time `json:"in_force_until,omitzero" doc:"absent: it is in force, or never was"`
	Named   string    `json:"named,omitempty" doc:"the named policy that the box followed"`
	Leases  int       `json:"leases,omitempty" doc:"number of temporary entries"`
	Digest  string    `json:"digest" doc:"SHA-256 of the policy without temporary entries"`
}

// PolicyVersions is a part of the history of the policy of a box, the latest version first.
type PolicyVersions struct {
	Box       policy.BoxID    `json:"box"`
	Versions  []PolicyVersion `json:"versions"`
	More      bool            `json:"more" doc:"there are older versions: ask with before"`
	Dropped   uint64          `json:"dropped" doc:"versions that are missing, because the history is bounded"`
	DeletedAt time.Time       `json:"deleted_at,omitzero" doc:"when the box was deleted"`
}

// VersionQuery selects versions of the history of a policy.
type VersionQuery struct {
	Before uint64    // only older versions; 0: all
	Most   int       // at most so many, the latest; 0: all
	At     time.Time // the one version that was in force then; zero: all
}

// PolicyDocument is one version of the policy of a box with its text, and with everything else that decided along with it.
type PolicyDocument struct {
	Box policy.BoxID `json:"box"`
	PolicyVersion
	Policy      policy.Spec   `json:"policy" doc:"the policy without temporary entries"`
	Entries     []PastLease   `json:"entries,omitempty" doc:"temporary entries; each ended by itself at its time"`
	HeaderRules []PastRules   `json:"header_rules,omitempty" doc:"the header rules of the box while the version was in force, without secrets"`
	GlobalRules []PastRules   `json:"global_header_rules,omitempty" doc:"likewise those of all boxes; absent for box-creator and one-box keys"`
	Ceilings    []PastCeiling `json:"ceilings,omitempty" doc:"likewise policy.ceiling of the configuration; absent for box-creator and one-box keys"`
}

// PastLease is a temporary entry of a version of a policy.
type PastLease struct {
	Action    string    `json:"action" enum:"allow deny audit" doc:"audit: the policy was audited instead of enforced"`
	Entry     string    `json:"entry" doc:"empty with audit"`
	StartedAt time.Time `json:"started_at"`
	ExpiresAt time.Time `json:"expires_at"`
	KeyID     string    `json:"key_id,omitempty" doc:"of the API key that made it"`
}

// PastRules are a version of header rules.
type PastRules struct {
	Version uint64     `json:"version"`
	Since   time.Time  `json:"since"`
	KeyID   string     `json:"key_id,omitempty" doc:"ID of the API key that set them"`
	Key     string     `json:"key,omitempty" doc:"its name"`
	Remote  string     `json:"remote,omitempty"`
	Rules   []PastRule `json:"rules"`
}

// PastRule is a header rule without secrets, and without the requests that it matches.
type PastRule struct {
	Host    string   `json:"host"`
	Deny    bool     `json:"deny,omitempty"`
	Scrub   bool     `json:"scrub,omitempty"`
	Secrets []string `json:"secrets,omitempty" doc:"names of secrets of the configuration"`
	Effects Effects  `json:"effects,omitzero"`
}

// Effects are the effects of a header rule by kind, without secrets.
type Effects struct{ json.RawMessage }

// FreeForm marks the type for the description of the API: the members differ between kinds.
func (Effects) FreeForm() {}

// PastCeiling is a version of the ceiling.
type PastCeiling struct {
	Version uint64       `json:"version"`
	Since   time.Time    `json:"since"`
	Policy  *policy.Spec `json:"policy" doc:"null: no ceiling"`
}
