// Package github mints installation tokens of GitHub Apps: scoped to repositories and permissions, valid for an hour.
package github

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"boxgate/internal/lazyregexp"
	"boxgate/policy/name"
	"boxgate/secrets/assertion"
	"boxgate/secrets/remote"
)

const (
	publicAPI = "https://api.github.com"
	// appTokenTime is the lifetime of the app's own token; GitHub accepts at most ten minutes.
	appTokenTime = 5 * time.Minute
	// tokenTime is the maximum lifetime of GitHub's tokens, whatever the answer contains.
	tokenTime = time.Hour

	maxRepositories = 500
)

// App is an installation of a GitHub App.
type App struct {
	AppID          string            `yaml:"app_id"`          // or its client ID
	InstallationID int64             `yaml:"installation_id"` // or
	Repository     string            `yaml:"repository"`      // owner/name: the installation of this repository
	PrivateKey     string            `yaml:"private_key"`     // name of a secret
	Repositories   []string          `yaml:"repositories"`    // names without owner; empty: all of the installation
	Permissions    map[string]string `yaml:"permissions"`     // empty: all of the installation
	API            string            `yaml:"api"`             // of GitHub Enterprise, such as https://github.example.com/api/v3
}

var (
	appID      = lazyregexp.New(`^[A-Za-z0-9._-]{1,64}$`)
	repository = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9-]{0,99}/[A-Za-z0-9._-]{1,100}$`)
	repoName   = lazyregexp.New(`^[A-Za-z0-9._-]{1,100}$`)
	permission = lazyregexp.New(`^[a-z_]{1,64}$`)
)

// Validate implements [remote.Source].
func (a *App) Validate(fail remote.Fail) {
	if !appID.MatchString(a.AppID) {
		fail("app_id", "is not the ID of an app; it is on the app's page in the settings of GitHub")
	}
	switch {
	case a.InstallationID < 0 || (a.InstallationID == 0) == (a.Repository == ""):
		fail("installation_id", "give either the ID of the installation, or a repository (owner/name) that it covers")
	case a.Repository != "" && !isPath(a.Repository):
		fail("repository", "is not of the form owner/name")
	}
	if a.PrivateKey == "" {
		fail("private_key", "is missing; give the name of the secret with the app's private key")
	}
	a.validateScope(fail)
	if a.API != "" {
		if err := remote.CheckURL(a.API); err != nil {
			fail("api", "%v", err)
		}
	}
}

func (a *App) validateScope(fail remote.Fail) {
	if len(a.Repositories) > maxRepositories {
		fail("repositories", "has %d names; the limit of GitHub is %d", len(a.Repositories), maxRepositories)
	}
	for _, name := range a.Repositories {
		if !repoName.MatchString(name) || isDots(name) {
			fail("repositories", "each is the name of a repository, without its owner")
			break
		}
	}
	for name, level := range a.Permissions {
		if !permission.MatchString(name) || level != "read" && level != "write" && level != "admin" {
			fail("permissions", "each is a permission with read, write or admin, such as contents: read")
			break
		}
	}
}

// isPath reports whether s is owner/name and unchanged by URL normalization.
func isPath(s string) bool {
	_, name, _ := strings.Cut(s, "/")
	return repository.MatchString(s) && !isDots(name)
}

func isDots(s string) bool { return strings.Trim(s, ".") == "" }

// Needs implements [remote.Source].
func (a *App) Needs() []string { return []string{a.PrivateKey} }

// Place implements [remote.Source].
func (a *App) Place() string { return "app " + a.AppID + " at " + hostOf(a.api()) }

func (a *App) api() string {
	if a.API == "" {
		return publicAPI
	}
	return strings.TrimSuffix(a.API, "/")
}

func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "?"
	}
	return u.Host
}

// Fetch implements [remote.Source].
func (a *App) Fetch(ctx context.Context, d remote.Env) (remote.Value, error) {
	header, err := a.authenticate(ctx, d)
	if err != nil {
		return remote.Value{}, err
	}
	id, err := a.installation(ctx, d, header)
	if err != nil {
		return remote.Value{}, err
	}
	body, err := json.Marshal(a.scope())
	if err != nil {
		return remote.Value{}, err
	}
	var answer struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	at := a.api() + "/app/installations/" + strconv.FormatInt(id, 10) + "/access_tokens"
	head, err := d.Client.JSON(ctx, remote.Request{Method: http.MethodPost, URL: at, Header: header, Body: body}, &answer)
	switch {
	case err != nil:
		return remote.Value{}, err
	case answer.Token == "":
		return remote.Value{}, remote.ErrAnswer("token")
	case answer.ExpiresAt.IsZero():
		return remote.Value{}, remote.ErrAnswer("expires_at")
	}
	left := min(remote.TimeLeft(answer.ExpiresAt, head, d.Now()), tokenTime)
	if left <= 0 {
		return remote.Value{}, remote.ErrExpired
	}
	return remote.Value{Secret: name.NewSecret(answer.Token), Lifetime: left}, nil
}

// authenticate returns the headers of requests as the app.
func (a *App) authenticate(ctx context.Context, d remote.Env) (http.Header, error) {
	key, err := d.Secret(ctx, a.PrivateKey)
	if err != nil {
		return nil, err
	}
	signer, err := assertion.Parse(key, "")
	if err != nil {
		return nil, err
	}
	token, err := signer.Sign(assertion.Claims{Issuer: a.AppID, Lifetime: appTokenTime}, d.Now())
	if err != nil {
		return nil, err
	}
	return http.Header{
		"Authorization": {"Bearer " + token.Reveal()}, "Accept": {"application/vnd.github+json"},
		"X-Github-Api-Version": {"2022-11-28"}, "Content-Type": {"application/json"},
	}, nil
}

// installation returns the ID of the installation. If only a repository is configured, it asks GitHub.
func (a *App) installation(ctx context.Context, d remote.Env, header http.Header) (int64, error) {
	if a.InstallationID != 0 {
		return a.InstallationID, nil
	}
	var answer struct {
		ID int64 `json:"id"`
	}
	_, err := d.Client.JSON(ctx, remote.Request{URL: a.api() + "/repos/" + a.Repository + "/installation", Header: header}, &answer)
	if err == nil && answer.ID <= 0 {
		err = remote.ErrAnswer("id of the installation")
	}
	return answer.ID, err
}

// scope returns the limits of a token.
func (a *App) scope() map[string]any {
	scope := map[string]any{}
	if len(a.Repositories) > 0 {
		scope["repositories"] = a.Repositories
	}
	if len(a.Permissions) > 0 {
		scope["permissions"] = a.Permissions
	}
	return scope
}
