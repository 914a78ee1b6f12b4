package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"boxgate/policy"
	"boxgate/policy/name"
	"boxgate/store/history"
	"boxgate/store/layout"
)

// Headers are the header rules of a box, or the global ones.
type Headers struct {
	Rules   []policy.HeaderRule
	Version uint64 // 0: never set
}

// Headers returns the header rules of a box. If they were never set they are empty, with version 0.
func (db Rules) Headers(id policy.BoxID) (Headers, error) { return db.getHeaders(string(id)) }

// GlobalHeaders returns the header rules of every box. If they were never set they are empty, with version 0.
func (db Rules) GlobalHeaders() (Headers, error) { return db.getHeaders(layout.Global) }

// EncodeHeaders returns the document of header rules, with their literal values in the clear. Rules that could not be read back are refused.
func EncodeHeaders(rules []policy.HeaderRule) ([]byte, error) {
	rec, err := newHeadersRecord(rules, 1)
	return rec.Rules, err
}

// DecodeHeaders reads a result of [EncodeHeaders].
func DecodeHeaders(document []byte) ([]policy.HeaderRule, error) {
	h, err := headersRecord{Version: 1, Rules: document}.headers()
	return h.Rules, err
}

// fleetHeaders is the key of the settings with this host's copy of the global header rules of its fleet.
const fleetHeaders = "fleet headers"

// fleetHeadersRecord is the stored form of the copy, before it is sealed.
type fleetHeadersRecord struct {
	Founding string        `json:"founding"` // of the fleet
	Headers  headersRecord `json:"headers"`
}

// FleetHeaders returns the copy of the fleet's global header rules, and the founding of that fleet. Without one both are zero.
func (db Rules) FleetHeaders() (founding string, h Headers, err error) {
	text, err := db.getText(fleetHeaders)
	if err != nil || text.Reveal() == "" {
		return "", Headers{}, err
	}
	var rec fleetHeadersRecord
	if err := json.Unmarshal([]byte(text.Reveal()), &rec); err != nil {
		return "", Headers{}, errRules // err may quote a secret
	}
	h, err = rec.Headers.headers()
	return rec.Founding, h, err
}

// SetFleetHeaders stores the copy of the fleet's global header rules, sealed, without a version in the history. With an empty founding it removes the
// copy.
func (db Rules) SetFleetHeaders(founding string, h Headers) error {
	if founding == "" {
		return db.update(func(tx *transaction) error {
			settings, err := tx.table(layout.Settings)
			if err != nil || !settings.Has([]byte(fleetHeaders)) {
				return err
			}
			return tx.delete(layout.Settings, []byte(fleetHeaders))
		})
	}
	rec, err := newHeadersRecord(h.Rules, h.Version)
	if err != nil {
		return err
	}
	text, err := json.Marshal(fleetHeadersRecord{founding, rec})
	if err != nil {
		return err
	}
	return db.setText(fleetHeaders, name.NewSecret(string(text)))
}

// LastHeadersVersion is [Rules.LastVersion] for the header rules of a box, or for the global ones with "".
func (db Rules) LastHeadersVersion(id policy.BoxID) (uint64, error) {
	owner := string(id)
	if id == "" {
		owner = layout.Global
	}
	return History{db.file}.LastVersion(headerSlot(owner).history)
}

// StageHeaders stores header rules of a box next to the committed ones, replacing rules staged before. They are not in
// force until [Rules.CommitHeaders]. The version must be higher than the committed one, else the error is [ErrConflict].
func (db Rules) StageHeaders(id policy.BoxID, rules []policy.HeaderRule, version uint64, by history.Origin) error {
	return db.update(func(tx *transaction) error {
		if err := requireBox(tx, id); err != nil {
			return err
		}
		return stageHeaders(tx, string(id), rules, version, by)
	})
}

// CommitHeaders makes the staged header rules of a box the committed ones. Without staged ones the error is [ErrNotFound].
func (db Rules) CommitHeaders(id policy.BoxID) error { return db.commit(headerSlot(string(id))) }

// AbortHeaders deletes the staged header rules of a box, if there are any.
func (db Rules) AbortHeaders(id policy.BoxID) error { return db.abort(headerSlot(string(id))) }

// StageGlobalHeaders is [Rules.StageHeaders] for the header rules of every box.
func (db Rules) StageGlobalHeaders(rules []policy.HeaderRule, version uint64, by history.Origin) error {
	return db.update(func(tx *transaction) error { return stageHeaders(tx, layout.Global, rules, version, by) })
}

// CommitGlobalHeaders is [Rules.CommitHeaders] for the header rules of every box.
func (db Rules) CommitGlobalHeaders() error { return db.commit(headerSlot(layout.Global)) }

// AbortGlobalHeaders is [Rules.AbortHeaders] for the header rules of every box.
func (db Rules) AbortGlobalHeaders() error { return db.abort(headerSlot(layout.Global)) }

func (db Rules) getHeaders(owner string) (Headers, error) {
	var rec headersRecord
	err := db.view(func(tx *transaction) (err error) {
		rec, err = readHeaders(tx, owner)
		return err
	})
	if err != nil {
		return Headers{}, err
	}
	return rec.headers()
}

// readHeaders reads the header rules of a box, or of all boxes; the record is zero if they were never set.
func readHeaders(tx *transaction, owner string) (headersRecord, error) {
	var rec headersRecord
	_, err := tx.getSealed(layout.Headers, owner, &rec)
	return rec, err
}

// stageHeaders seals header rules for the place where they are staged.
func stageHeaders(tx *transaction, owner string, rules []policy.HeaderRule, version uint64, by history.Origin) error {
	old, err := readHeaders(tx, owner)
	if err != nil {
		return err
	}
	if version <= old.Version {
		return fmt.Errorf("the header rules have version %d already, %d cannot follow: %w", old.Version, version, ErrConflict)
	}
	rec, err := newHeadersRecord(rules, version)
	if err != nil {
		return err
	}
	s := headerSlot(owner)
	sealed, err := tx.sealJSON(layout.Staged, s.staged, rec)
	if err != nil {
		return err
	}
	v, text, err := headersVersion(rules, version, by)
	if err != nil {
		return err
	}
	return stage(tx, s, sealed, v, text)
}

// headersRecord is the stored form of header rules, before they are sealed: the document that
// [policy.ParseHeaderRules] reads. Until November 2026 Rules was a list, see [convertRules].
type headersRecord struct {
	Version uint64          `json:"version"`
	Rules   json.RawMessage `json:"rules"`
}

// newHeadersRecord returns the stored form of rules. Tokens are derived from the box's key and are not stored. Rules that
// could not be read back are refused.
func newHeadersRecord(rules []policy.HeaderRule, version uint64) (headersRecord, error) {
	if len(rules) == 0 { // older versions read that as well
		return headersRecord{Version: version}, nil
	}
	document, err := policy.MarshalHeaderRules(rules)
	if err != nil {
		return headersRecord{}, fmt.Errorf("storing header rules: %w", err)
	}
	rec := headersRecord{version, document}
	if _, err := rec.headers(); err != nil {
		return headersRecord{}, err
	}
	return rec, nil
}

// headers returns the header rules of a record; the zero record has none.
func (rec headersRecord) headers() (Headers, error) {
	document := rec.Rules
	switch {
	case len(document) == 0 || string(document) == "null":
		return Headers{Version: rec.Version}, nil
	case document[0] == '[':
		var err error
		if document, err = convertRules(document); err != nil {
			return Headers{}, err
		}
	}
	rules, err := policy.ParseHeaderRules(document, nil)
	if err != nil {
		return Headers{}, fmt.Errorf("%w: %w", errRules, err)
	}
	return Headers{Rules: rules, Version: rec.Version}, nil
}

// errRules is the error for rules with parts that this version does not know. Without an unknown part, a rule could
// allow requests that it should refuse.
var errRules = errors.New("the store has header rules that this version does not know; set the rules again")

// This file reads header rules as they were stored until November 2026: a list with a field for whatever a rule could do.

type listedRule struct {
	Pattern      string          `json:"pattern"`
	Match        json.RawMessage `json:"match"`
	Headers      []listedValue   `json:"headers"`
	Placeholders []listedValue   `json:"placeholders"`
	Scrub        bool            `json:"scrub"`
	Deny         bool            `json:"deny"`
	Places       []string        `json:"places"`
	Query        []listedValue   `json:"query"`
	Sign         *struct {
		AWS  *listedSigning `json:"aws"`
		HMAC *listedSigning `json:"hmac"`
	} `json:"sign"`
	Login *struct {
		Postgres, SSH, Proxy *listedLogin
	} `json:"login"`
	Client *struct {
		Certificate, Key string
	} `json:"client_certificate"`
	Forward string `json:"forward_url"`
}

// listedValue is a header, a parameter of the query or a placeholder.
type listedValue struct {
	Name, Variable, Value, Source, Prefix, Suffix, User string
	Remove, Basic                                       bool
}

type listedSigning struct {
	Key, Source                                          string
	Regions, Services                                    []string
	Header, Format, Encoding, Template, Timestamp, Clock string
}

type listedLogin struct {
	User, Database, Password, Source, Auth, Scheme string
	HostKeys                                       []string `json:"host_keys"`
	Repos                                          json.RawMessage
	Commands                                       []string
}

// convertRules returns the document of rules that were stored as a list.
func convertRules(list json.RawMessage) (json.RawMessage, error) {
	var rules []listedRule
	dec := json.NewDecoder(bytes.NewReader(list))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&rules); err != nil {
		return nil, errRules // err may quote a secret
	}
	entries := map[string][]map[string]any{}
	for _, r := range rules {
		entry, err := r.entry()
		if err != nil {
			return nil, err
		}
		entries[r.Pattern] = append(entries[r.Pattern], entry)
	}
	hosts := map[string]any{}
	for host, list := range entries {
		if hosts[host] = list; len(list) == 1 {
			hosts[host] = list[0]
		}
	}
	document, err := json.Marshal(hosts)
	if err != nil {
		return nil, fmt.Errorf("converting header rules: %w", err)
	}
	return document, nil
}

// entry returns the rule as an entry of a document.
func (r listedRule) entry() (map[string]any, error) {
	if r.Login != nil {
		switch l := r.Login; {
		case l.Postgres != nil:
			return map[string]any{"postgres": l.Postgres.entry("user")}, nil
		case l.SSH != nil:
			return map[string]any{"ssh": l.SSH.ssh()}, nil
		case l.Proxy != nil:
			return map[string]any{"proxy": l.Proxy.entry("username")}, nil
		}
		return nil, errRules
	}
	headers, removed := map[string]any{}, []string{}
	for _, h := range r.Headers {
		if h.Remove {
			removed = append(removed, h.Name)
		} else {
			headers[h.Name] = h.entry()
		}
	}
	out := map[string]any{"headers": headers, "scrub": r.Scrub}
	add := func(key string, given bool, v any) {
		if given {
			out[key] = v
		}
	}
	add("match", len(r.Match) > 0 && string(r.Match) != "null", r.Match)
	add("remove", len(removed) > 0, removed)
	add("placeholders", len(r.Placeholders) > 0, byName(r.Placeholders))
	add("places", len(r.Places) > 0, r.Places)
	add("query", len(r.Query) > 0, byName(r.Query))
	add("deny", r.Deny, true)
	add("forward_url", r.Forward != "", r.Forward)
	if c := r.Client; c != nil {
		out["client_certificate"] = map[string]any{"certificate": secretNamed(c.Certificate), "key": secretNamed(c.Key)}
	}
	if s := r.Sign; s != nil {
		if s.AWS == nil && s.HMAC == nil {
			return nil, errRules
		}
		out["sign"] = signingEntry(s.AWS, s.HMAC)
	}
	return out, nil
}

func byName(values []listedValue) map[string]any {
	out := map[string]any{}
	for _, v := range values {
		out[v.Name+v.Variable] = v.entry()
	}
	return out
}

func (v listedValue) entry() any {
	switch {
	case v.Basic:
		return map[string]string{"secret": v.Source, "encode": "basic", "user": v.User}
	case v.Source != "" && v.Prefix+v.Suffix != "":
		return map[string]string{"secret": v.Source, "prefix": v.Prefix, "suffix": v.Suffix}
	}
	return valueOrSecret(v.Value, v.Source)
}

func valueOrSecret(value, source string) any {
	if source != "" {
		return secretNamed(source)
	}
	return value
}

func secretNamed(name string) map[string]string { return map[string]string{"secret": name} }

func signingEntry(aws, hmac *listedSigning) map[string]any {
	if aws != nil {
		return map[string]any{"aws": map[string]any{"credentials": valueOrSecret(aws.Key, aws.Source), "region": aws.Regions, "service": aws.Services}}
	}
	clock := map[string]string{"format": hmac.Clock}
	if hmac.Timestamp != "" {
		clock["header"] = hmac.Timestamp
	}
	return map[string]any{"hmac": map[string]any{
		"key": valueOrSecret(hmac.Key, hmac.Source), "header": hmac.Header, "format": hmac.Format, "encoding": hmac.Encoding,
		"template": hmac.Template, "timestamp": clock,
	}}
}

// entry returns a login by a password.
func (l listedLogin) entry(user string) map[string]any {
	out := map[string]any{user: l.User, "password": valueOrSecret(l.Password, l.Source)}
	for key, v := range map[string]string{"database": l.Database, "auth": l.Auth, "scheme": l.Scheme} {
		if v != "" {
			out[key] = v
		}
	}
	return out
}

func (l listedLogin) ssh() map[string]any {
	out := map[string]any{"user": l.User, "key": secretNamed(l.Source), "host_keys": slices.Clip(l.HostKeys)}
	if len(l.Repos) > 0 && string(l.Repos) != "null" {
		out["repos"] = l.Repos
	}
	if len(l.Commands) > 0 {
		out["commands"] = l.Commands
	}
	return out
}
