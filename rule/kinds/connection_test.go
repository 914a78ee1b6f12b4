package kinds_test

import (
	"encoding/json"
	"testing"

	"boxgate/policy"
	"boxgate/rule"
	"boxgate/rule/kinds"
)

// effectOf returns the rule of a kind's example, and its effect.
func effectOf(t *testing.T, k rule.Kind) (policy.HeaderRule, rule.Effect) {
	t.Helper()
	rules, err := policy.ParseHeaderRules([]byte(`{"a.test:5432": {"`+k.Key()+`": `+k.Example()+`}}`), nil)
	if err != nil {
		t.Fatalf("the example of %s: %v", k.Key(), err)
	}
	if len(rules) != 1 || len(rules[0].Effects) != 1 || rules[0].Effects[0].Key() != k.Key() {
		t.Fatalf("the example of %s became %+v", k.Key(), rules)
	}
	return rules[0], rules[0].Effects[0]
}

// TestKindsInRules: each kind reads what it writes of its example, and prints what it shows of it.
func TestKindsInRules(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, k := range kinds.Shown() {
		if seen[k.Key()] {
			t.Errorf("two kinds have the key %s", k.Key())
		}
		seen[k.Key()] = true
		r, e := effectOf(t, k)
		written, err := policy.MarshalHeaderRules([]policy.HeaderRule{r})
		if err != nil {
			t.Fatal(err)
		}
		again, err := policy.ParseHeaderRules(written, nil)
		if err != nil || !again[0].SendsAlike(&r) || !e.Equal(e) {
			t.Errorf("%s became %s, %v", k.Key(), written, err)
		}
		shown, err := json.Marshal(e.Show())
		if err != nil {
			t.Fatal(err)
		}
		_, ofGateway := e.(rule.ProxyLogin) // which is not for what boxes send
		if (k.Line(shown) == "") != ofGateway || r.Applies() == ofGateway {
			t.Errorf("%s is shown as %s, and printed as %q", k.Key(), shown, k.Line(shown))
		}
	}
}

// TestNoRuleIsWrittenAsAListOfHeaders: a program that does not know the key of a kind takes an entry with texts only for the names and values of
// headers, which it would send. It must refuse the entry.
func TestNoRuleIsWrittenAsAListOfHeaders(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.Shown() {
		r, _ := effectOf(t, k)
		for _, member := range policy.WriteHeaderRules([]policy.HeaderRule{r}) {
			entry, ok := member.(map[string]any)
			texts := 0
			for _, v := range entry {
				if _, isText := v.(string); isText {
					texts++
				}
			}
			if !ok || texts == len(entry) {
				t.Errorf("%s is written as %v", k.Key(), member)
			}
		}
	}
}

// TestOneKindForEachStageOfConnections: no rule has two effects of which one would be forgotten, and logins are in the list of those that
// stand alone.
func TestOneKindForEachStageOfConnections(t *testing.T) {
	t.Parallel()
	stages := map[string][]string{}
	for _, k := range kinds.Shown() {
		_, e := effectOf(t, k)
		_, identity := e.(rule.Identity)
		_, redirect := e.(rule.Redirect)
		_, login := e.(rule.Login)
		_, proxy := e.(rule.ProxyLogin)
		for stage, is := range map[string]bool{"identity": identity, "redirect": redirect, "login": login, "proxy": proxy} {
			if is {
				stages[stage] = append(stages[stage], k.Key())
			}
		}
		if (login || proxy) != (kinds.Login(k.Key()) != nil) {
			t.Errorf("%s is in the wrong list", k.Key())
		}
	}
	if len(stages["identity"]) != 1 || len(stages["redirect"]) != 1 {
		t.Errorf("kinds by stage: %v", stages)
	}
}
