package policy

import (
	"encoding/json"
	"maps"

	"boxgate/rule"
	"boxgate/rule/kinds"
)

// MarshalHeaderRules is the inverse of [ParseHeaderRules], without tokens. The result contains literal values in the clear and must be sealed
// before it is stored.
func MarshalHeaderRules(rules []HeaderRule) ([]byte, error) {
	return json.Marshal(WriteHeaderRules(rules))
}

// WriteHeaderRules returns the document of header rules as a value for encoding/json, with literal values in the clear.
func WriteHeaderRules(rules []HeaderRule) map[string]any {
	entries := map[string][]map[string]any{}
	for _, r := range rules {
		entries[r.Pattern.String()] = append(entries[r.Pattern.String()], writeEntry(r))
	}
	out := map[string]any{}
	for host, list := range entries {
		if out[host] = list; len(list) == 1 {
			out[host] = list[0]
		}
	}
	return out
}

func writeEntry(r HeaderRule) map[string]any {
	if on := r.OnConnections(); on.Login != nil || on.Proxy != nil { // the only member of its entry
		return map[string]any{r.Effects[0].Key(): r.Effects[0].Document()}
	}
	out := map[string]any{}
	if r.Match != nil {
		out["match"] = r.Match
	}
	if !r.Applies() {
		out[kinds.Compact.Key()] = map[string]any{} // the full form, which may have a match
	}
	if r.Scrub != r.scrubsByDefault() {
		out["scrub"] = r.Scrub
	}
	if r.Deny {
		out["deny"] = true
	}
	for _, e := range r.Effects {
		if d := e.Document(); d != nil {
			out[e.Key()] = d
		}
		if w, ok := e.(rule.WideEffect); ok {
			maps.Copy(out, w.Members())
		}
	}
	if onlyTexts(out) {
		out[kinds.Compact.Key()] = map[string]any{} // or programs that do not know the kinds would send their members as headers
	}
	return out
}

// onlyTexts reports whether the members of an entry are all texts, as those of compact entries.
func onlyTexts(entry map[string]any) bool {
	for _, v := range entry {
		if _, ok := v.(string); !ok {
			return false
		}
	}
	return true
}
