package store

import (
	"errors"
	"fmt"

	"boxgate/policy"
)

// headersRecord is the stored form of header rules, before they are sealed.
type headersRecord struct {
	Version uint64       `json:"version"`
	Rules   []ruleRecord `json:"rules"`
}

type ruleRecord struct {
	Pattern      string              `json:"pattern"`
	Match        *policy.Match       `json:"match,omitempty"`
	Headers      []headerRecord      `json:"headers"`
	Placeholders []placeholderRecord `json:"placeholders,omitempty"`
	Scrub        bool                `json:"scrub,omitempty"`
	Deny         bool                `json:"deny,omitempty"`
	Places       []string            `json:"places,omitempty"`
	Query        []headerRecord      `json:"query,omitempty"`
	Sign         *signRecord         `json:"sign,omitempty"`
	Login        *loginRecord        `json:"login,omitempty"`
	Client       *clientRecord       `json:"client_certificate,omitempty"`
	Forward      string              `json:"forward_url,omitempty"`
}

type headerRecord struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source,omitempty"`
	Prefix string `json:"prefix,omitempty"`
	Suffix string `json:"suffix,omitempty"`
	Remove bool   `json:"remove,omitempty"`
	Basic  bool   `json:"basic,omitempty"`
	User   string `json:"user,omitempty"`
}

// clientRecord names the secrets of a client certificate.
type clientRecord struct {
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

type placeholderRecord struct {
	Variable string `json:"variable"`
	Value    string `json:"value,omitempty"`
	Source   string `json:"source,omitempty"`
}

// recordOf returns the stored form of a rule. Tokens are derived from the box's key and are not stored.
func recordOf(r policy.HeaderRule) ruleRecord {
	w := ruleRecord{
		Pattern: r.Pattern.String(), Match: r.Match, Scrub: r.Scrub, Deny: r.Deny, Places: r.Places.Names(), Sign: signRecordOf(r.Sign),
		Client: (*clientRecord)(r.Client),
	}
	if r.Forward != nil {
		w.Forward = r.Forward.URL()
	}
	for _, h := range r.Headers {
		w.Headers = append(w.Headers, headerRecord{h.Name, h.Value.Reveal(), h.Source, h.Prefix, h.Suffix, h.Remove, h.Basic, h.User})
	}
	for _, q := range r.Query {
		w.Query = append(w.Query, headerRecord{Name: q.Name, Value: q.Value.Reveal(), Source: q.Source, Prefix: q.Prefix, Suffix: q.Suffix})
	}
	for _, p := range r.Placeholders {
		w.Placeholders = append(w.Placeholders, placeholderRecord{p.Variable, p.Value.Reveal(), p.Source})
	}
	w.Login = loginRecordOf(r.Login)
	return w
}

// rule is the reverse of recordOf.
func (w ruleRecord) rule() (policy.HeaderRule, error) {
	pattern, err := policy.ParsePattern(w.Pattern)
	if err != nil {
		return policy.HeaderRule{}, fmt.Errorf("a header rule in the store has no valid pattern; set the rules again: %w", err)
	}
	rule := policy.HeaderRule{
		Pattern: pattern, Match: w.Match, Scrub: w.Scrub, Deny: w.Deny, Client: (*policy.ClientCertificate)(w.Client),
	}
	if w.Forward != "" {
		to, err := policy.ParseForward(w.Forward)
		if err != nil {
			return policy.HeaderRule{}, fmt.Errorf("a header rule in the store has a URL to forward to that %w; set the rules again", err)
		}
		rule.Forward = &to
	}
	for _, h := range w.Headers {
		rule.Headers = append(rule.Headers, policy.Header{
			Name: h.Name, Value: policy.NewSecret(h.Value), Source: h.Source, Prefix: h.Prefix, Suffix: h.Suffix, Remove: h.Remove,
			Basic: h.Basic, User: h.User,
		})
	}
	for _, q := range w.Query {
		rule.Query = append(rule.Query, policy.QueryParameter{
			Name: q.Name, Value: policy.NewSecret(q.Value), Source: q.Source, Prefix: q.Prefix, Suffix: q.Suffix,
		})
	}
	known := false
	if rule.Places, known = policy.PlacesOf(w.Places); !known {
		return policy.HeaderRule{}, errPlaces
	}
	rule.Sign = w.Sign.signing()
	for _, p := range w.Placeholders {
		rule.Placeholders = append(rule.Placeholders, policy.Placeholder{
			Variable: p.Variable, Value: policy.NewSecret(p.Value), Source: p.Source,
		})
	}
	rule.Login, err = w.Login.login()
	return rule, err
}

var errPlaces = errors.New("a header rule in the store has places that this version does not know; set the rules again")

// headers returns the header rules of a record.
func (rec headersRecord) headers() (Headers, error) {
	out := Headers{Version: rec.Version}
	for _, r := range rec.Rules {
		rule, err := r.rule()
		if err != nil {
			return Headers{}, err
		}
		out.Rules = append(out.Rules, rule)
	}
	return out, nil
}
