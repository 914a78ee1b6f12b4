package policy

import (
	"encoding/json"
	"maps"

	"boxgate/rule"
)

// MarshalHeaderRules returns the document that [ParseHeaderRules] reads as these rules. Tokens are not part of it. It holds literal values in
// the clear: whoever keeps it seals it.
func MarshalHeaderRules(rules []HeaderRule) ([]byte, error) {
	return json.Marshal(WriteHeaderRules(rules))
}

// WriteHeaderRules returns header rules in the form that [ParseHeaderRules] reads, with their values.
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
	if on := r.OnConnections(); on.Login != nil || on.Proxy != nil { // which stands alone
		return map[string]any{r.Effects[0].Key(): r.Effects[0].Document()}
	}
	headers, remove := map[string]any{}, []string{}
	for _, h := range r.Headers {
		if h.Remove {
			remove = append(remove, h.Name)
		} else {
			headers[h.Name] = h.value().Document()
		}
	}
	out := map[string]any{
		"match": r.Match, "headers": headers, "remove": remove,
		"scrub": r.Scrub, "deny": r.Deny,
	}
	for key, given := range map[string]bool{
		"match": r.Match != nil, "headers": len(headers) > 0 || !r.Applies(), "remove": len(remove) > 0,
		"scrub": r.Scrub != r.scrubsByDefault(), "deny": r.Deny,
	} {
		if !given {
			delete(out, key)
		}
	}
	for _, e := range r.Effects {
		out[e.Key()] = e.Document()
		if w, ok := e.(rule.WideEffect); ok {
			maps.Copy(out, w.Members())
		}
	}
	return out
}
