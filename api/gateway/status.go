// Package gateway serves the gateway-wide endpoints: health and state, keys, secrets, the store and CAs.
package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"slices"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
	"boxgate/api/strict"
	"boxgate/internal/buildinfo"
	"boxgate/policy"
	"boxgate/policy/name"
)

// Boxes finds and lists the boxes.
type Boxes interface {
	rest.Finder
	// Boxes lists the boxes, oldest first.
	Boxes(ctx context.Context, f api.BoxFilter) ([]api.Box, error)
}

// Health reports whether the gateway is ready, and the usage of its bounded resources.
type Health interface {
	// Ready returns nil if boxes can be created and served and every listener accepts connections. Otherwise the error
	// describes the obstacle.
	Ready(ctx context.Context) error
	// Capacity returns the usage of the gateway's bounded resources.
	Capacity(ctx context.Context) (api.Capacity, error)
}

// Store rotates the keys of the store and of the API, and backs up and verifies the store.
type Store interface {
	// RotateStoreKey re-encrypts every secret of the store with a new key file or with the new passphrase. The passphrase
	// must be given exactly if the store has one; otherwise the error is a *document.InvalidError.
	RotateStoreKey(ctx context.Context, newPassphrase name.Secret) error
	// BackupStore writes a consistent copy of the store, with its secrets encrypted.
	BackupStore(ctx context.Context, w io.Writer) error
	// VerifyStore reads every document of the store.
	VerifyStore(ctx context.Context) (api.StoreReport, error)
	// RotateAPIKey makes a new API key and writes it to the file read by the commands on the gateway's host. Earlier keys
	// stop working after grace.
	RotateAPIKey(ctx context.Context, grace time.Duration) error
}

// Secrets gives access to the state of the configured secrets, and to the public keys of identity tokens.
type Secrets interface {
	// Secrets returns the state of every configured secret, sorted by name.
	Secrets(ctx context.Context) ([]api.SecretStatus, error)
	// RefreshSecret discards the value of a secret, cuts the connections that carry it, and reads it again; the state
	// shows whether that succeeded. A secret that cannot change while the gateway runs is an ErrConflict.
	RefreshSecret(ctx context.Context, name string) (api.SecretStatus, error)
	// DerivedSecrets returns the names of the secrets that are made with a secret, sorted. known reports whether the
	// configuration has the secret.
	DerivedSecrets(name string) (derived []string, known bool)
	// IdentityKeys returns the public keys of the identity tokens in forwarded requests, as a JSON Web Key Set.
	IdentityKeys(ctx context.Context) (json.RawMessage, error)
}

// Authorities are the certificate authorities.
type Authorities interface {
	// CA returns the PEM of the box's interception CA certificate.
	CA(ctx context.Context, id policy.BoxID) ([]byte, error)
	// IngressCA returns the PEM of the internal CA that signs public URLs, or ErrNotFound if they have another issuer.
	IngressCA(ctx context.Context) ([]byte, error)
}

// Events gives access to decisions about the traffic of boxes.
type Events interface {
	// RecentEvents returns the decisions still in memory.
	RecentEvents(ctx context.Context, f api.EventFilter) (api.PastEvents, error)
}

// Models gives access to the use of models.
type Models interface {
	// ModelUsage returns the use of models by all boxes together, deleted ones included.
	ModelUsage(ctx context.Context) api.ModelUsage
}

// Endpoints serves the gateway-wide endpoints.
type Endpoints struct {
	Boxes       Boxes
	Health      Health
	Store       Store
	Secrets     Secrets
	Authorities Authorities
	Events      Events
	Models      Models
	Bodies      strict.Bodies
	// Started is the time when the gateway began to serve.
	Started time.Time
}

// Routes lists the endpoints.
func (e *Endpoints) Routes() []rest.Route {
	return []rest.Route{
		{Method: "GET", Path: "/healthz", ID: "getHealth", Public: true, Summary: "Whether the process runs; needs no key", Response: reflect.TypeFor[rest.OK](), Handle: e.healthz},
		{Method: "GET", Path: "/readyz", ID: "getReadiness", Public: true, Summary: "Whether boxes can be created and served, and every listener accepts connections; needs no key", Response: reflect.TypeFor[rest.OK](), Handle: e.readyz},
		{Method: "GET", Path: "/v2/gateway", ID: "getStatus", Summary: "Version, uptime, boxes by state, recent denials, and connections of the listeners", Response: reflect.TypeFor[gatewayView](), Handle: e.status},
		{Method: "GET", Path: "/.well-known/jwks.json", ID: "getIdentityKeys", Public: true, Summary: "The public keys that verify the identity tokens of forwarded requests; needs no key", Response: reflect.TypeFor[keySet](), Handle: e.identityKeys},
		{Method: "GET", Path: "/v2/box/{id}/ca", ID: "getBoxCa", Summary: "The interception CA of a box", Produces: []string{"application/x-pem-file"}, Handle: e.boxCA},
		{Method: "POST", Path: "/v2/store/rotate-key", ID: "rotateStoreKey", Summary: "Encrypt the secrets of the store with a new key", Request: reflect.TypeFor[storeKeyBody](), Example: `{}`, Response: reflect.TypeFor[rest.OK](), Handle: e.rotateStoreKey},
		{Method: "GET", Path: "/v2/store/backup", ID: "backupStore", Summary: "A consistent copy of the store, with its secrets encrypted", Produces: []string{"application/octet-stream"}, Handle: e.backup},
		{Method: "GET", Path: "/v2/store/verify", ID: "verifyStore", Summary: "Whether every document of the store can be read", Response: reflect.TypeFor[api.StoreReport](), Handle: e.verifyStore},
		{Method: "POST", Path: "/v2/api-key/rotate", ID: "rotateApiKey", Summary: "Replace the operator's API key by a new one, written to the state directory; keys with names stay", Request: reflect.TypeFor[apiKeyBody](), Example: `{"grace":"1h"}`, Response: reflect.TypeFor[rest.OK](), Handle: e.rotateAPIKey},
		{Method: "GET", Path: "/v2/secrets", ID: "listSecrets", Summary: "The secrets of the configuration with their sources and ages, without values", Response: reflect.TypeFor[secretsView](), Handle: e.listSecrets},
		{Method: "POST", Path: "/v2/secrets/{name}/refresh", ID: "refreshSecret", Summary: "Discard the value of a secret, cut the connections that carry it, and read it again", Response: reflect.TypeFor[secretView](), Handle: e.refreshSecret},
		{Method: "GET", Path: "/v2/usage/models", ID: "getModelUsage", Summary: "The use of models by all boxes together, deleted ones included, with the limit for all", Response: reflect.TypeFor[rest.ModelView](), Handle: e.modelUsage},
		{Method: "GET", Path: "/v2/ca", ID: "getCa", Summary: "The CA that signs public URLs", Produces: []string{"application/x-pem-file"}, Handle: e.ingressCA},
	}
}

// denialPeriod is the period over which denials are counted.
const denialPeriod = 10 * time.Minute

// gatewayView is an overview of the gateway's state.
type gatewayView struct {
	Version       string             `json:"version"`
	Revision      string             `json:"revision"`
	Date          string             `json:"date,omitempty" doc:"of the revision"`
	StartedAt     string             `json:"started_at"`
	UptimeSeconds int64              `json:"uptime_seconds"`
	Boxes         map[api.Status]int `json:"boxes" doc:"number of boxes in each state"`
	Denials       denialsView        `json:"denials"`
	Audited       auditedView        `json:"audited"`
	Listeners     []listenerView     `json:"listeners"`
	Places        []placeView        `json:"places" doc:"resources shared by all boxes or by all visitors"`
	Descriptors   placeView          `json:"descriptors" doc:"open files of the process"`
	Unremoved     []string           `json:"unremoved" doc:"interfaces of closed boxes that the kernel did not remove; this is retried, and until then it may forward their traffic"`
	MetricsExport *exportView        `json:"metrics_export,omitempty" doc:"the export of metrics by OTLP; absent: it is off"`
	SSHHostKey    string             `json:"ssh_host_key,omitempty" doc:"SHA-256 fingerprint of the host key of SSH, as ssh shows it; absent: ssh.listen is off" example:"SHA256:R7F3…"`
}

// exportView is the state of an export to a collector.
type exportView struct {
	LastSuccess string `json:"last_success,omitempty" doc:"when the collector last accepted something; absent: never" format:"date-time"`
	Error       string `json:"error,omitempty" doc:"of the last attempt; absent: it succeeded, or has not begun"`
}

// listenerView is one listener.
type listenerView struct {
	Name        string `json:"name" doc:"what it serves"`
	Address     string `json:"address"`
	Accepts     bool   `json:"accepts" doc:"whether it accepted the gateway's latest test connection"`
	Connections int    `json:"connections" doc:"accepted connections that are still open"`
	Limit       int    `json:"limit" doc:"maximum number of connections; 0: only limits per box or per peer"`
}

// placeView is the usage of a bounded resource.
type placeView struct {
	Name  string `json:"name"`
	Used  int    `json:"used"`
	Limit int    `json:"limit" doc:"0: no limit"`
}

// denialsView counts denials.
type denialsView struct {
	Seconds int                    `json:"seconds" doc:"length of the period that is counted"`
	Total   uint64                 `json:"total"`
	Reasons map[name.Reason]uint64 `json:"reasons"`
	Boxes   []boxDenials           `json:"boxes" doc:"the boxes with the most denials, at most ten"`
	AtLeast bool                   `json:"at_least" doc:"older denials of the period may already have been dropped"`
}

// boxDenials counts the denials of one box.
type boxDenials struct {
	ID    policy.BoxID `json:"id"`
	Name  string       `json:"name,omitempty"`
	Total uint64       `json:"total"`
}

// auditedView counts the boxes whose policy is audited instead of enforced.
type auditedView struct {
	Total int          `json:"total" doc:"number of boxes whose policy is audited instead of enforced"`
	Boxes []auditedBox `json:"boxes" doc:"those that are audited longest, at most ten"`
}

// auditedBox is a box whose policy is audited.
type auditedBox struct {
	ID        policy.BoxID `json:"id"`
	Name      string       `json:"name,omitempty"`
	ExpiresAt int64        `json:"expires_at" doc:"the policy is enforced again"`
}

// maxAuditedBoxes bounds the boxes in an [auditedView].
const maxAuditedBoxes = 10

// audited lists the boxes whose policy is audited, the last to end first.
func audited(boxes []api.Box) auditedView {
	view := auditedView{Boxes: []auditedBox{}}
	for _, b := range boxes {
		if l, audited := b.Policy.Audit(); audited {
			view.Boxes = append(view.Boxes, auditedBox{b.ID, b.Name, l.ExpiresAt.Unix()})
		}
	}
	view.Total = len(view.Boxes)
	slices.SortFunc(view.Boxes, func(a, b auditedBox) int {
		return cmp.Or(cmp.Compare(b.ExpiresAt, a.ExpiresAt), cmp.Compare(a.ID, b.ID))
	})
	view.Boxes = view.Boxes[:min(len(view.Boxes), maxAuditedBoxes)]
	return view
}

// maxDeniedBoxes bounds the boxes in a [denialsView].
const maxDeniedBoxes = 10

func (e *Endpoints) status(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	boxes, err := e.Boxes.Boxes(r.Context(), api.BoxFilter{})
	if err != nil {
		return rest.Reply{}, err
	}
	denials, err := e.denials(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	capacity, err := e.Health.Capacity(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	b := buildinfo.Get()
	view := gatewayView{
		Version: b.Version, Revision: b.Revision, Date: b.Date, Boxes: map[api.Status]int{}, Denials: denials, Audited: audited(boxes),
		StartedAt: e.Started.UTC().Format(time.RFC3339), UptimeSeconds: int64(time.Since(e.Started).Seconds()),
	}
	for _, box := range boxes {
		view.Boxes[box.Status]++
	}
	view.Listeners, view.Places, view.Descriptors = []listenerView{}, []placeView{}, placeView(capacity.Descriptors)
	view.Unremoved = append([]string{}, capacity.Unremoved...)
	for _, l := range capacity.Listeners {
		view.Listeners = append(view.Listeners, listenerView(l))
	}
	for _, p := range capacity.Places {
		view.Places = append(view.Places, placeView(p))
	}
	view.SSHHostKey = capacity.SSHHostKey
	if x := capacity.MetricsExport; x != nil {
		view.MetricsExport = &exportView{Error: x.Error}
		if !x.Succeeded.IsZero() {
			view.MetricsExport.LastSuccess = x.Succeeded.UTC().Format(time.RFC3339)
		}
	}
	return rest.Reply{Body: view}, nil
}

// denials counts the denials still in memory. One event can stand for many denials.
func (e *Endpoints) denials(ctx context.Context) (denialsView, error) {
	past, err := e.Events.RecentEvents(ctx, api.EventFilter{Since: time.Now().Add(-denialPeriod), Denied: true})
	boxes := map[policy.BoxID]*boxDenials{}
	view := denialsView{Seconds: int(denialPeriod.Seconds()), Reasons: map[name.Reason]uint64{}, AtLeast: past.Missing}
	for _, event := range past.Events {
		n := max(event.Count, 1)
		view.Total += n
		view.Reasons[event.Reason] += n
		if event.Box == "" {
			continue
		}
		if boxes[event.Box] == nil {
			boxes[event.Box] = &boxDenials{ID: event.Box, Name: event.BoxName}
		}
		boxes[event.Box].Total += n
	}
	view.Boxes = mostDenied(boxes)
	return view, err
}

// mostDenied returns the boxes with the most denials, in descending order.
func mostDenied(boxes map[policy.BoxID]*boxDenials) []boxDenials {
	list := make([]boxDenials, 0, len(boxes))
	for _, b := range boxes {
		list = append(list, *b)
	}
	slices.SortFunc(list, func(a, b boxDenials) int { return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.ID, b.ID)) })
	return list[:min(len(list), maxDeniedBoxes)]
}

// healthz always succeeds: it shows that the process serves.
func (e *Endpoints) healthz(http.ResponseWriter, *http.Request) (rest.Reply, error) {
	return rest.Done(), nil
}

// readyz requires no key, so the reason for not being ready is only logged.
func (e *Endpoints) readyz(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if err := e.Health.Ready(ctx); err != nil {
		return rest.Reply{}, &api.Error{Kind: api.ErrUnavailable, Message: "not ready; the gateway's log says what is missing", Cause: err}
	}
	return rest.Done(), nil
}

// modelUsage handles GET /v2/usage/models.
func (e *Endpoints) modelUsage(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	view := rest.ViewModels(e.Models.ModelUsage(r.Context()))
	if view == nil {
		view = &rest.ModelView{}
	}
	return rest.Reply{Body: view}, nil
}
