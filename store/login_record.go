package store

import (
	"errors"

	"boxgate/policy"
)

// loginRecord is the stored form of a login.
type loginRecord struct {
	Postgres *postgresRecord `json:"postgres,omitempty"`
	SSH      *sshRecord      `json:"ssh,omitempty"`
	Proxy    *proxyRecord    `json:"proxy,omitempty"`
}

type proxyRecord struct {
	Scheme   string `json:"scheme,omitempty"`
	User     string `json:"user"`
	Password string `json:"password,omitempty"`
	Source   string `json:"source,omitempty"`
}

type postgresRecord struct {
	User     string `json:"user"`
	Database string `json:"database"`
	Password string `json:"password,omitempty"`
	Source   string `json:"source,omitempty"`
	Auth     string `json:"auth"`
}

type sshRecord struct {
	User     string            `json:"user"`
	Source   string            `json:"source"`
	HostKeys []string          `json:"host_keys"`
	Repos    []policy.RepoRule `json:"repos,omitempty"`
	Commands []string          `json:"commands,omitempty"`
}

func loginRecordOf(l *policy.Login) *loginRecord {
	if l == nil {
		return nil
	}
	if s := l.SSH; s != nil {
		return &loginRecord{SSH: &sshRecord{s.User, s.Source, s.HostKeyLines(), s.Repos, s.Commands}}
	}
	if p := l.Proxy; p != nil {
		return &loginRecord{Proxy: &proxyRecord{string(p.Scheme), p.User, p.Password.Reveal(), p.Source}}
	}
	pg := l.Postgres
	return &loginRecord{Postgres: &postgresRecord{pg.User, pg.Database, pg.Password.Reveal(), pg.Source, pg.Auth.String()}}
}

// errLogin is the error for a login that this version does not know: a rule without it would let pass what the login
// refuses.
var errLogin = errors.New("a header rule in the store has a login of an unknown kind; set the rules again")

// login is the reverse of loginRecordOf.
func (w *loginRecord) login() (*policy.Login, error) {
	if w == nil {
		return nil, nil
	}
	if w.SSH != nil {
		return w.SSH.login()
	}
	if p := w.Proxy; p != nil {
		return &policy.Login{Proxy: &policy.ProxyLogin{Scheme: policy.ProxyScheme(p.Scheme), User: p.User, Password: policy.NewSecret(p.Password), Source: p.Source}}, nil
	}
	if w.Postgres == nil {
		return nil, errLogin
	}
	pg := w.Postgres
	auth, ok := policy.ParsePostgresAuth(pg.Auth)
	if !ok {
		return nil, errLogin
	}
	return &policy.Login{Postgres: &policy.Postgres{
		User: pg.User, Database: pg.Database, Password: policy.NewSecret(pg.Password), Source: pg.Source, Auth: auth,
	}}, nil
}

func (w *sshRecord) login() (*policy.Login, error) {
	s := &policy.SSH{User: w.User, Source: w.Source, Repos: w.Repos, Commands: w.Commands}
	for _, line := range w.HostKeys {
		key, err := policy.ParseHostKey(line)
		if err != nil {
			return nil, errLogin
		}
		s.HostKeys = append(s.HostKeys, key)
	}
	return &policy.Login{SSH: s}, nil
}
