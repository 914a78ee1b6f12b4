package usage

import (
	"bytes"
	"context"
	"strings"

	"boxgate/api"
	"boxgate/host/state"
	"boxgate/launcher"
	"boxgate/policy"
)

// Settings changes the settings of boxes.
type Settings interface {
	Configure(ctx context.Context, id policy.BoxID, change func(*api.Configuration) error) (api.Box, error)
}

// Git sets the author of git commits made in boxes.
type Git struct {
	usage    *Service
	settings Settings
}

// NewGit returns the service.
func NewGit(u *Service, settings Settings) *Git { return &Git{u, settings} }

// gitIdentity is the default author of commits.
var gitIdentity = launcher.GitIdentity{Name: "Upstash Box", Email: "box@upstash.com"}

// GitIdentityOf returns the author of commits in a box, as long as the box has no git configuration of its own.
func GitIdentityOf(h api.Hosted) launcher.GitIdentity {
	is := gitIdentity
	if h.GitUserName != "" {
		is.Name = h.GitUserName
	}
	if h.GitUserEmail != "" {
		is.Email = h.GitUserEmail
	}
	return is
}

// SetGitIdentity implements the Host of [boxgate/api/git]. The box is configured first, then the identity is stored for
// boxes restored from snapshots.
func (g *Git) SetGitIdentity(ctx context.Context, id policy.BoxID, name, email string) (nowName, nowEmail string, err error) {
	for _, set := range []struct{ key, value string }{{"user.name", name}, {"user.email", email}} {
		if set.value == "" {
			continue
		}
		if err := g.configure(ctx, id, set.key, set.value); err != nil {
			return "", "", err
		}
	}
	box, err := g.settings.Configure(ctx, id, func(c *api.Configuration) error {
		if name != "" {
			c.Hosted.GitUserName = name
		}
		if email != "" {
			c.Hosted.GitUserEmail = email
		}
		return nil
	})
	is := GitIdentityOf(box.Hosted)
	return is.Name, is.Email, err
}

// configure sets a value in the system-wide git configuration of a box.
func (g *Git) configure(ctx context.Context, id policy.BoxID, key, value string) error {
	var out bytes.Buffer
	var res launcher.Result
	err := g.usage.doAwake(ctx, id, func(*state.Box) (err error) {
		res, err = g.usage.sandboxes.Exec(ctx, id, launcher.ExecSpec{
			User: "root", Cwd: "/", Args: []string{"git", "config", "--file", "/etc/gitconfig", "--replace-all", key, value}, Stderr: &out,
		})
		return err
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return api.Errorf(api.ErrConflict, "git cannot be configured in the box: %w", err)
	case res.Status != 0:
		return api.Errorf(api.ErrConflict, "git cannot be configured in the box: %s", strings.ToValidUTF8(clip(strings.TrimSpace(out.String())), "?"))
	}
	return nil
}
