// Package manager reads values from secret managers by their HTTP APIs: the key-value store of Vault (and OpenBao),
// 1Password Connect and Google Secret Manager.
package manager

import (
	"context"
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"

	"boxgate/internal/lazyregexp"
	"boxgate/policy/name"
	"boxgate/secrets/remote"
)

const googleSecrets = "https://secretmanager.googleapis.com"

// GCP is a secret of Google Secret Manager.
type GCP struct {
	Secret   string `yaml:"secret"`   // projects/PROJECT/secrets/NAME, optionally with /versions/VERSION
	Token    string `yaml:"token"`    // name of a secret: an access token, such as from a google source with the scope cloud-platform
	Field    string `yaml:"field"`    // of a value that is a JSON object; empty: the whole value
	Endpoint string `yaml:"endpoint"` // of a region; empty: https://secretmanager.googleapis.com
}

var gcpSecret = lazyregexp.New(`^projects/[a-z0-9.:-]{1,100}(/locations/[a-z0-9-]{1,40})?/secrets/[A-Za-z0-9_-]{1,255}(/versions/[a-z0-9_-]{1,64})?$`)

// Validate implements [remote.Source].
func (g *GCP) Validate(fail remote.Fail) {
	if !gcpSecret.MatchString(g.Secret) {
		fail("secret", "is not of the form projects/PROJECT/secrets/NAME")
	}
	if g.Token == "" {
		fail("token", "is missing; give the name of a secret with an access token, such as a google source")
	}
	if g.Endpoint != "" {
		if err := remote.CheckURL(g.Endpoint); err != nil {
			fail("endpoint", "%v", err)
		}
	}
}

// Needs implements [remote.Source].
func (g *GCP) Needs() []string { return []string{g.Token} }

// Place implements [remote.Source].
func (g *GCP) Place() string { return g.Secret }

// Fetch implements [remote.Source].
func (g *GCP) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	token, err := d.Secret(ctx, g.Token)
	if err != nil {
		return remote.Value{}, err
	}
	at := strings.TrimSuffix(g.Endpoint, "/")
	if at == "" {
		at = googleSecrets
	}
	at += "/v1/" + g.Secret
	if !strings.Contains(g.Secret, "/versions/") {
		at += "/versions/latest"
	}
	var a struct {
		Payload struct {
			Data   []byte `json:"data"` // in base64
			CRC32C string `json:"dataCrc32c"`
		} `json:"payload"`
	}
	_, err = d.Client.JSON(ctx, remote.Request{URL: at + ":access", Header: http.Header{"Authorization": {"Bearer " + token.Reveal()}}}, &a)
	if err != nil {
		return remote.Value{}, err
	}
	data := a.Payload.Data
	if sum := a.Payload.CRC32C; sum != "" && sum != strconv.FormatUint(uint64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))), 10) {
		return remote.Value{}, remote.ErrAnswer("data that its checksum fits")
	}
	if g.Field != "" {
		return remote.FieldOf(string(data), g.Field)
	}
	return remote.Value{Secret: name.NewSecret(string(data))}, nil
}
