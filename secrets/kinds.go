package secrets

import (
	"errors"
	"maps"
	"slices"

	"boxgate/secrets/aws"
	"boxgate/secrets/github"
	"boxgate/secrets/manager"
	"boxgate/secrets/oauth"
	"boxgate/secrets/remote"
)

// kinds has a constructor for each kind of remote source, by its key in the configuration.
var kinds = map[string]func() remote.Source{
	"github_app": func() remote.Source { return &github.App{} },
	"oauth2":     func() remote.Source { return &oauth.OAuth2{} },
	"google":     func() remote.Source { return &oauth.Google{} },
	"azure":      func() remote.Source { return &oauth.Azure{} },
	"aws_role":   func() remote.Source { return &aws.Role{} },
	"aws_secret": func() remote.Source { return &aws.Secret{} },
	"gcp_secret": func() remote.Source { return &manager.GCP{} },
	"vault":      func() remote.Source { return &manager.Vault{} },

	"onepassword": func() remote.Source { return &manager.OnePassword{} },
}

// RemoteKinds returns the configuration keys of the remote sources.
func RemoteKinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// NewRemote returns an empty remote source of a kind, to be filled in from the configuration; nil if the kind is
// unknown.
func NewRemote(kind string) remote.Source {
	if make := kinds[kind]; make != nil {
		return make()
	}
	return nil
}

// withDocuments returns the sources, and marks the ones that others need as documents: a private key is not valid in a
// header.
func withDocuments(sources map[string]Source) map[string]Source {
	out := maps.Clone(sources)
	for _, source := range sources {
		for _, need := range source.needs() {
			if s, ok := out[need]; ok {
				s.Document = true
				out[need] = s
			}
		}
	}
	return out
}

// needs returns the names of the secrets that a source needs.
func (s Source) needs() []string {
	if s.Remote == nil {
		return nil
	}
	return s.Remote.Needs()
}

// checkNeeds returns an error if a source needs an unknown secret, or directly or indirectly itself. It does not quote
// an unknown name, which may be a value given by mistake.
func checkNeeds(sources map[string]Source, name string) error {
	for _, need := range sources[name].needs() {
		if _, ok := sources[need]; need != "" && !ok {
			return errors.New("names a secret that is not an entry of secrets: other secrets are given by their name")
		}
	}
	if allNeeded(sources, name)[name] {
		return errors.New("depends on itself through the secrets that it names")
	}
	return nil
}

// allNeeded returns the names of all secrets that a secret needs, directly or indirectly.
func allNeeded(sources map[string]Source, name string) map[string]bool {
	all := map[string]bool{}
	for open := []string{name}; len(open) > 0; {
		at := open[len(open)-1]
		open = open[:len(open)-1]
		for _, need := range sources[at].needs() {
			if !all[need] {
				all[need] = true
				open = append(open, need)
			}
		}
	}
	return all
}
