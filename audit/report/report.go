// Package report answers the questions of an auditor from the records of the gateway: the traffic that left each box, with its
// amount and the version of the policy; who changed or approved that version, and why; the uses of secrets; and refusals.
//
// A [Builder] receives the decisions of a window, then the entries of the audit trail, and sums both up. It holds sums, never
// requests, and their number is bounded ([MaxRows]): rows beyond it are counted, and the count is part of the report. All texts
// come from the records, which contain no value of a secret; names and paths are texts of the boxes, and reasons of approvals
// are texts of boxes and people. A program that shows them must escape them.
package report

import (
	"encoding/json"
	"time"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Schema identifies the form of a [Report] in JSON. Fields may be added under the same schema.
const Schema = "boxgate.report/1"

// MaxRows bounds the rows of all tables of a report together, where a row with long texts counts as several. Half of them are for changes;
// without a box in the query, an eighth is for the traffic of each box.
const MaxRows = 20_000

// Query selects the records of a report.
type Query struct {
	Box   policy.BoxID // only this box; "" for all
	Name  string       // only boxes that had this name, if Box is empty, such as that of a deleted box; "" for all
	Since time.Time
	Until time.Time
	// Secrets selects decisions in which one of these secrets was used; nil for all. Their uses then are told apart by method
	// as well.
	Secrets []string
}

// Report sums up the records of a window.
type Report struct {
	Schema      string    `json:"schema" enum:"boxgate.report/1"`
	GeneratedAt time.Time `json:"generated_at"`
	Gateway     string    `json:"gateway" doc:"version of the gateway"`
	Since       time.Time `json:"since"`
	Until       time.Time `json:"until"`
	Box         string    `json:"box,omitempty" doc:"the box asked about; absent: all"`
	Decisions   Coverage  `json:"decisions"`
	Trail       Integrity `json:"trail"`
	// Notes are the limits of the report, such as lost decisions.
	Notes   []string `json:"notes,omitempty" doc:"limits of this report, as sentences"`
	Boxes   []Box    `json:"boxes" doc:"with traffic or changes in the window, or existing; by name"`
	Changes []Change `json:"changes,omitempty" doc:"changes that are not about one box, oldest first"`
	Calls   []Call   `json:"calls,omitempty" doc:"calls about no box that changed nothing recorded, refused calls included"`
}

// Coverage is which decisions a report is made from.
type Coverage struct {
	Read          uint64    `json:"read" doc:"number of decisions in the window that were read"`
	CompleteSince time.Time `json:"complete_since,omitzero" doc:"earlier decisions may be missing"`
	Complete      bool      `json:"complete" doc:"no decision of the window is missing in the log"`
	OmittedRows   uint64    `json:"omitted_rows,omitempty" doc:"rows beyond the bound of a report, counted in the totals of their box only"`
}

// Integrity is the state of the audit trail.
type Integrity struct {
	Entries  int      `json:"entries"`
	Head     string   `json:"head,omitempty" doc:"hash of the last entry"`
	Problems []string `json:"problems,omitempty" doc:"entries that were changed, inserted or removed; absent: none"`
}

// Box is the part of a report about one box.
type Box struct {
	ID        policy.BoxID `json:"id"`
	Name      string       `json:"name,omitempty"`
	Exists    bool         `json:"exists" doc:"whether the box existed when the report was made"`
	Allowed   uint64       `json:"allowed" doc:"allowed connections and requests, without look-ups"`
	Denied    uint64       `json:"denied" doc:"refused by the policy or a limit, look-ups included"`
	Failed    uint64       `json:"failed" doc:"not served for a failure of a server or of a secret"`
	Lookups   uint64       `json:"lookups" doc:"allowed look-ups of names"`
	BytesOut  int64        `json:"bytes_out" doc:"from the box, of traffic that ended in the window"`
	BytesIn   int64        `json:"bytes_in"`
	Egress    []Flow       `json:"egress,omitempty" doc:"traffic that left the box, the largest first"`
	Refused   []Flow       `json:"refused,omitempty" doc:"refused and failed traffic, the most frequent first"`
	Visits    []Flow       `json:"visits,omitempty" doc:"visits of its public URLs"`
	Secrets   []Use        `json:"secrets,omitempty" doc:"where which secret of the configuration was used"`
	Policies  []Version    `json:"policies,omitempty" doc:"the versions of its policy that decided, or were made, in the window"`
	Approvals []Approval   `json:"approvals,omitempty" doc:"answers to its requests for access, oldest first"`
	Changes   []Change     `json:"changes,omitempty" doc:"changes about the box, oldest first"`
	Calls     []Call       `json:"calls,omitempty" doc:"calls about the box that changed nothing recorded, such as commands"`
}

// Flow sums up traffic with the same destination and the same decision.
type Flow struct {
	Host     string          `json:"host,omitempty" doc:"the name, or the address if no name is known"`
	Port     uint16          `json:"port,omitempty"`
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Lookup   bool            `json:"lookup,omitempty" doc:"only the name was looked up; no connection to it followed"`
	Action   string          `json:"action,omitempty"`
	Reason   name.Reason     `json:"reason"`
	Failure  bool            `json:"failure,omitempty" doc:"a server or a secret is the reason, not the policy"`
	Rule     string          `json:"rule,omitempty"`
	Version  uint64          `json:"policy_version,omitempty"`
	Via      string          `json:"via,omitempty" doc:"upstream proxy"`
	Count    uint64          `json:"count" doc:"requests, or connections whose requests the gateway does not read"`
	// Connections is the number of connections that carried the requests.
	Connections uint64    `json:"connections,omitempty" doc:"that carried the requests"`
	BytesOut    int64     `json:"bytes_out,omitempty" doc:"on the connections; if only requests are known, of their bodies"`
	BytesIn     int64     `json:"bytes_in,omitempty"`
	Headers     []string  `json:"headers,omitempty" doc:"names of headers that the gateway set"`
	Secrets     []string  `json:"secrets,omitempty" doc:"names of the secrets of the configuration that were used"`
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
}

// Use sums up the uses of a secret by one box at one destination.
type Use struct {
	Secret   string          `json:"secret"`
	Box      policy.BoxID    `json:"box"`
	BoxName  string          `json:"box_name,omitempty"`
	Host     string          `json:"host,omitempty"`
	Port     uint16          `json:"port,omitempty"`
	Protocol policy.Protocol `json:"protocol,omitempty"`
	Method   string          `json:"method,omitempty" doc:"only in the uses of one secret"`
	Paths    []string        `json:"paths,omitempty" doc:"up to 16 of the paths, without queries; only in the uses of one secret"`
	Rule     string          `json:"rule,omitempty"`
	Headers  []string        `json:"headers,omitempty" doc:"names of headers that the gateway set"`
	Login    string          `json:"login,omitempty" doc:"where the gateway logged in, and as whom"`
	Via      string          `json:"via,omitempty"`
	Version  uint64          `json:"policy_version,omitempty"`
	Count    uint64          `json:"count"`
	BytesOut int64           `json:"bytes_out,omitempty"`
	BytesIn  int64           `json:"bytes_in,omitempty"`
	First    time.Time       `json:"first"`
	Last     time.Time       `json:"last"`
}

// Version is a version of the policy of a box.
type Version struct {
	Version   uint64    `json:"version"`
	Decisions uint64    `json:"decisions" doc:"number of decisions by it in the window"`
	First     time.Time `json:"first,omitzero" doc:"the first of these decisions"`
	Last      time.Time `json:"last,omitzero"`
	// Change is the entry of the trail that made it; nil if the trail no longer has it.
	Change *Change `json:"change,omitempty"`
	// Text is the policy in full; nil if the gateway no longer has it.
	Text *Text `json:"text,omitempty" doc:"the policy in full and its temporary entries (entries); absent: the gateway no longer has it"`
}

// Text is a policy as a JSON object.
type Text struct{ json.RawMessage }

// FreeForm marks it as an arbitrary object in the description of the API.
func (Text) FreeForm() {}

// Who is the caller of the API, or the owner of an entry.
type Who struct {
	Key    string `json:"key,omitempty" doc:"name of the API key"`
	KeyID  string `json:"key_id,omitempty"`
	Role   string `json:"role,omitempty"`
	Remote string `json:"remote,omitempty" doc:"address of the caller, or unix with the user"`
}

// Change is an entry of the audit trail that changed something.
type Change struct {
	Seq     uint64       `json:"seq" doc:"number of the entry in the audit trail"`
	Time    time.Time    `json:"time"`
	By      Who          `json:"by"`
	Call    string       `json:"call,omitempty" doc:"the endpoint; absent for changes that the gateway made, such as the end of temporary entries"`
	Status  int          `json:"status,omitempty" doc:"of the answer; 400 and above: it was not carried out"`
	Box     policy.BoxID `json:"box,omitempty"`
	Version uint64       `json:"policy_version,omitempty" doc:"version of the policy after it"`
	What    []string     `json:"what,omitempty" doc:"the changes, without values of secrets"`
	Note    string       `json:"note,omitempty"`
}

// Call sums up calls of the API that recorded no change.
type Call struct {
	By     Who       `json:"by"`
	Call   string    `json:"call"`
	Status int       `json:"status,omitempty" doc:"absent: no answer was recorded"`
	Count  uint64    `json:"count"`
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
}

// Approval is an answer to the request of a box for access.
type Approval struct {
	Seq     uint64    `json:"seq" doc:"number of the entry in the audit trail"`
	Time    time.Time `json:"time"`
	By      Who       `json:"by"`
	Entry   string    `json:"entry,omitempty" doc:"the entry of a policy that was asked for"`
	Asked   string    `json:"asked,omitempty" doc:"reason of the box: untrusted text"`
	Answer  string    `json:"answer" doc:"once, always, denied or needs_human"`
	Reason  string    `json:"reason,omitempty" doc:"reason of the answer"`
	Version uint64    `json:"policy_version,omitempty" doc:"version of the policy with it"`
}

// Uses are the uses of one secret.
type Uses struct {
	Secret    string    `json:"secret"`
	Derived   []string  `json:"derived,omitempty" doc:"secrets of the configuration that are made with it; their uses are included"`
	Since     time.Time `json:"since"`
	Until     time.Time `json:"until"`
	Decisions Coverage  `json:"decisions"`
	Notes     []string  `json:"notes,omitempty" doc:"limits of this list, as sentences"`
	Uses      []Use     `json:"uses" doc:"the latest first"`
	Changes   []Change  `json:"changes,omitempty" doc:"changes in the window that name the secret, oldest first"`
}

// SchemaName returns the name of the type in the OpenAPI document.
func (Report) SchemaName() string { return "auditReport" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Coverage) SchemaName() string { return "reportCoverage" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Integrity) SchemaName() string { return "reportIntegrity" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Box) SchemaName() string { return "reportBox" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Flow) SchemaName() string { return "reportFlow" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Use) SchemaName() string { return "secretUse" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Text) SchemaName() string { return "reportPolicy" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Version) SchemaName() string { return "reportVersion" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Who) SchemaName() string { return "reportCaller" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Change) SchemaName() string { return "reportChange" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Call) SchemaName() string { return "reportCall" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Approval) SchemaName() string { return "reportApproval" }

// SchemaName returns the name of the type in the OpenAPI document.
func (Uses) SchemaName() string { return "secretUses" }
