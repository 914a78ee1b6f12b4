package e2b

import (
	"encoding/json"
	"strings"
	"time"

	"boxgate/api"
	"boxgate/api/e2b/token"
	"boxgate/policy/dialect"
	"net/http"
)

// box is a box in boxgate's own API, as far as it is read.
type box struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	Size          string            `json:"size"`
	Runtime       string            `json:"runtime"`
	Status        api.Status        `json:"status"`
	Error         string            `json:"error"`
	Metadata      map[string]string `json:"metadata"`
	ExpiresAt     int64             `json:"expires_at"`
	OnEnd         string            `json:"on_end"`
	AutoResume    bool              `json:"auto_resume"`
	PausedAtEnd   bool              `json:"paused_at_end"`
	CreatedAt     int64             `json:"created_at"`
	NetworkPolicy json.RawMessage   `json:"network_policy"`
}

// baseTemplate is the name of the default image in E2B's dialect.
const baseTemplate = "base"

// template returns the template of a box: the name of its image.
func (b box) template() string {
	if b.Runtime == "" {
		return baseTemplate
	}
	return b.Runtime
}

// The states of sandboxes.
const (
	stateRunning = "running"
	statePaused  = "paused"
)

// state returns the state of a box, "" for one that E2B has no state for.
func (b box) state() string {
	switch b.Status {
	case api.StatusPaused:
		return statePaused
	case api.StatusCreating, api.StatusIdle, api.StatusRunning:
		return stateRunning
	}
	return ""
}

// resources are the limits of a box of one size.
type resources struct{ cpus, memoryMB int }

// sizes are the limits by size, as [boxgate/launcher] sets them.
var sizes = map[string]resources{"small": {2, 4 << 10}, "medium": {4, 8 << 10}, "large": {8, 16 << 10}}

// noEnd is the shown end of a box without an end: E2B's sandboxes always have one.
var noEnd = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// end returns the end of a box.
func (b box) end() time.Time {
	if b.ExpiresAt == 0 {
		return noEnd
	}
	return time.Unix(b.ExpiresAt, 0).UTC()
}

// sandboxView is a sandbox in the response of a call that opens it.
type sandboxView struct {
	SandboxID          string `json:"sandboxID"`
	TemplateID         string `json:"templateID"`
	ClientID           string `json:"clientID"`
	EnvdVersion        string `json:"envdVersion"`
	EnvdAccessToken    string `json:"envdAccessToken"`
	TrafficAccessToken string `json:"trafficAccessToken,omitempty"`
	Domain             string `json:"domain,omitempty"`
}

// opened returns the view of a box for a caller that opens it, with the token of the caller's key.
func (e *Endpoints) opened(r *http.Request, b box, traffic string) sandboxView {
	v := sandboxView{
		SandboxID: b.ID, TemplateID: b.template(), ClientID: clientID, EnvdVersion: Version, Domain: e.Domain, TrafficAccessToken: traffic,
	}
	v.EnvdAccessToken = e.Maker.Token(policyID(b.ID), ownerOf(r)).Reveal()
	return v
}

// ownerOf returns the API key of a request.
func ownerOf(r *http.Request) token.Owner {
	key := r.Header.Get(api.KeyHeader)
	if key == "" {
		_, key, _ = strings.Cut(r.Header.Get("Authorization"), " ")
		key = strings.TrimSpace(key)
	}
	return token.OwnerOf(api.CallerOf(r.Context()), key)
}

// listedView is a sandbox in a list.
type listedView struct {
	SandboxID    string            `json:"sandboxID"`
	TemplateID   string            `json:"templateID"`
	ClientID     string            `json:"clientID"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int               `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	Metadata     map[string]string `json:"metadata"`
	State        string            `json:"state"`
	EnvdVersion  string            `json:"envdVersion"`
	VolumeMounts []struct{}        `json:"volumeMounts"`
}

func (e *Endpoints) listed(b box) listedView {
	size := sizes[b.Size]
	v := listedView{
		SandboxID: b.ID, TemplateID: b.template(), ClientID: clientID, StartedAt: time.Unix(b.CreatedAt, 0).UTC(), EndAt: b.end(),
		CPUCount: size.cpus, MemoryMB: size.memoryMB, DiskSizeMB: e.Disks[b.Size] >> 20, Metadata: b.Metadata, State: b.state(), EnvdVersion: Version, VolumeMounts: []struct{}{},
	}
	if v.Metadata == nil {
		v.Metadata = map[string]string{}
	}
	return v
}

// detailView is a sandbox with its settings.
type detailView struct {
	listedView
	Domain          string         `json:"domain,omitempty"`
	AllowInternet   bool           `json:"allowInternetAccess"`
	Network         map[string]any `json:"network"`
	Lifecycle       lifecycleView  `json:"lifecycle"`
	EnvdAccessToken string         `json:"envdAccessToken,omitempty"`
}

// lifecycleView is what happens at the end of a sandbox.
type lifecycleView struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

// The ends of sandboxes.
const (
	onTimeoutKill  = "kill"
	onTimeoutPause = "pause"
)

func (b box) lifecycle() lifecycleView {
	v := lifecycleView{AutoResume: b.AutoResume, OnTimeout: onTimeoutKill}
	if b.OnEnd == onTimeoutPause {
		v.OnTimeout = onTimeoutPause
	}
	return v
}

// hidden stands for the value of a header: boxgate does not return values.
const hidden = "[redacted]"

// networkOf returns the network options of a box. What E2B cannot express is left out; values of headers are hidden.
func networkOf(policy json.RawMessage, headers map[string][]string) (network map[string]any, internet bool) {
	network = map[string]any{}
	if data, err := dialect.Convert(policy, dialect.Boxgate, dialect.E2B); err == nil {
		_ = json.Unmarshal(data, &network)
	}
	delete(network, "rules")
	rules := map[string]any{}
	for host, names := range headers {
		set := map[string]string{}
		for _, n := range names {
			set[n] = hidden
		}
		rules[host] = []any{map[string]any{"transform": map[string]any{"headers": set}}}
	}
	if len(rules) > 0 {
		network["rules"] = rules
	}
	var mode struct{ Mode string }
	_ = json.Unmarshal(policy, &mode)
	return network, mode.Mode != "deny-all"
}
