package gateway

import (
	"net/http"
	"time"

	"boxgate/api"
	"boxgate/api/rest"
)

// secretView is the state of a secret. It never contains the value.
type secretView struct {
	Name      string  `json:"name"`
	Source    string  `json:"source" doc:"kind and place, such as file /etc/boxgate/openai.key"`
	Valid     bool    `json:"valid" doc:"whether a usable value is cached, or the next use reads it"`
	Stale     bool    `json:"stale,omitempty" doc:"the value expired without a use; the next use reads the source again"`
	ReadAt    *string `json:"read_at,omitempty" doc:"last successful read of the source"`
	ExpiresAt *string `json:"expires_at,omitempty" doc:"expiry reported by the source; absent: none"`
	Error     string  `json:"error,omitempty" doc:"why the last read failed"`
}

type secretsView struct {
	Secrets []secretView `json:"secrets"`
}

func viewOfSecret(s api.SecretStatus) secretView {
	return secretView{
		Name: s.Name, Source: s.Source, Valid: s.Valid, Stale: s.Stale, ReadAt: timeOrNone(s.Read), ExpiresAt: timeOrNone(s.Expires), Error: s.Error,
	}
}

func timeOrNone(at time.Time) *string {
	if at.IsZero() {
		return nil
	}
	text := at.UTC().Format(time.RFC3339)
	return &text
}

// listSecrets returns the state of each configured secret.
func (e *Endpoints) listSecrets(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	list, err := e.Secrets.Secrets(r.Context())
	if err != nil {
		return rest.Reply{}, err
	}
	view := secretsView{Secrets: make([]secretView, 0, len(list))}
	for _, s := range list {
		view.Secrets = append(view.Secrets, viewOfSecret(s))
	}
	return rest.Reply{Body: view}, nil
}

// refreshSecret discards the value of a secret and reads it again.
func (e *Endpoints) refreshSecret(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	s, err := e.Secrets.RefreshSecret(r.Context(), r.PathValue("name"))
	if err != nil {
		return rest.Reply{}, err
	}
	return rest.Reply{Body: viewOfSecret(s), Change: &rest.Change{What: map[string]any{"secret_refreshed": s.Name}}}, nil
}
