package manager

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

// OnePassword is a field of an item in 1Password, read from a Connect server.
type OnePassword struct {
	Address string `yaml:"address"` // of the Connect server
	Token   string `yaml:"token"`   // name of a secret: the server's access token
	Vault   string `yaml:"vault"`   // ID of the vault
	Item    string `yaml:"item"`    // ID of the item
	Field   string `yaml:"field"`   // ID or label; empty: password
	CAFile  string `yaml:"ca_file"` // trusted instead of the usual roots
}

// Validate implements [remote.Source].
func (o *OnePassword) Validate(fail remote.Fail) {
	if err := remote.CheckURL(o.Address); err != nil {
		fail("address", "%v", err)
	}
	if o.Token == "" {
		fail("token", "is missing; give the name of the secret with the access token of the Connect server")
	}
	for key, id := range map[string]string{"vault": o.Vault, "item": o.Item} {
		if !isPath(id) || strings.Contains(id, "/") {
			fail(key, "is not an ID")
		}
	}
}

// Needs implements [remote.Source].
func (o *OnePassword) Needs() []string { return []string{o.Token} }

// Place implements [remote.Source].
func (o *OnePassword) Place() string { return "item " + o.Item + " at " + hostOf(o.Address) }

// Fetch implements [remote.Source].
func (o *OnePassword) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	client, err := d.Client.WithCA(o.CAFile)
	if err != nil {
		return remote.Value{}, err
	}
	token, err := d.Secret(ctx, o.Token)
	if err != nil {
		return remote.Value{}, err
	}
	var item struct {
		State  string `json:"state"` // ARCHIVED or DELETED; missing: in use
		Fields []struct {
			ID, Label, Value string
		} `json:"fields"`
	}
	_, err = client.JSON(ctx, remote.Request{
		URL:    strings.TrimSuffix(o.Address, "/") + "/v1/vaults/" + url.PathEscape(o.Vault) + "/items/" + url.PathEscape(o.Item),
		Header: http.Header{"Authorization": {"Bearer " + token.Reveal()}},
	}, &item)
	switch {
	case err != nil:
		return remote.Value{}, err
	case item.State != "":
		return remote.Value{}, remote.ErrGone
	}
	n := o.Field
	if n == "" {
		n = "password"
	}
	for _, f := range item.Fields {
		if (f.ID == n || f.Label == n) && f.Value != "" {
			return remote.Value{Secret: name.NewSecret(f.Value)}, nil
		}
	}
	return remote.Value{}, remote.ErrAnswer("value in the configured field")
}
