package store

import (
	"encoding/json"
	"errors"
	"fmt"

	"boxgate/policy"
)

// headersRecord is the stored form of header rules, before they are sealed: the document that [policy.ParseHeaderRules] reads. Until
// November 2026 Rules was a list, see [convertRules].
type headersRecord struct {
	Version uint64          `json:"version"`
	Rules   json.RawMessage `json:"rules"`
}

// newHeadersRecord returns the stored form of rules. Tokens are derived from the box's key and are not stored. Rules that could not be read
// back are refused.
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

// errRules is the error for rules with parts that this version does not know. Without an unknown part, a rule could allow requests that it
// should refuse.
var errRules = errors.New("the store has header rules that this version does not know; set the rules again")
