package access

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"boxgate/api"
	"boxgate/policy"
	"boxgate/policy/name"
)

// TestWorkEndsWithItsCredential: work ends within a second after its credential has, whether its request has ended or not, and without one
// immediately. The credential is not looked at after the work.
func TestWorkEndsWithItsCredential(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		var revoked atomic.Bool
		request, ended := context.WithCancel(WithCredential(t.Context(), func() bool { looks.Add(1); return !revoked.Load() }))
		during, endDuring := While(request)
		after, endAfter := Outlive(request)
		short, endShort := Outlive(request)
		ended()
		if during.Err() == nil || after.Err() != nil {
			t.Errorf("after the request: %v, %v", during.Err(), after.Err())
		}
		endDuring()
		endShort(errors.New("done"))
		revoked.Store(true)
		select {
		case <-after.Done():
		case <-time.After(time.Minute):
			t.Error("the work goes on")
		}
		if got := looks.Load(); !errors.Is(context.Cause(after), ErrKeyEnded) || errors.Is(context.Cause(short), ErrKeyEnded) || got != 1 {
			t.Errorf("%v, %v, %d looks", context.Cause(after), context.Cause(short), got)
		}
		endAfter(nil)
		bare, end := Outlive(t.Context())
		defer end(nil)
		if nothing, end := While(WithCredential(t.Context(), nil)); !errors.Is(context.Cause(bare), ErrKeyEnded) || !errors.Is(context.Cause(nothing), ErrKeyEnded) {
			t.Errorf("without a credential: %v, %v", context.Cause(bare), context.Cause(nothing))
		} else {
			end()
		}
	})
}

// TestRulesWithSecretsOfOtherKeys: whoever has made a rule, only admin keys and the key whose secret it names may set it.
func TestRulesWithSecretsOfOtherKeys(t *testing.T) {
	t.Parallel()
	for source, may := range map[string]map[api.Caller]bool{
		"key_a:s": {{Key: "key_a", Role: api.RoleCreator}: true, {Key: "key_b", Role: api.RoleCreator}: false, {Key: "key_b", Role: api.RoleAdmin}: true, {Role: api.RoleCreator}: false},
		"s":       {{Key: "key_a", Role: api.RoleCreator}: false, {Key: "s", Role: api.RoleCreator}: false, {Key: "key_a", Role: api.RoleAdmin}: true},
	} {
		rules, err := policy.ParseHeaderRules([]byte(`{"a.example.com": {"headers": {"X-A": {"secret": "s"}}}}`), func(string, name.Pattern) (string, string) { return source, "" })
		if err != nil {
			t.Fatal(err)
		}
		for caller, want := range may {
			if err := Rules(api.WithCaller(t.Context(), caller), rules); (err == nil) != want {
				t.Errorf("the secret %s, by %+v: %v", source, caller, err)
			}
		}
	}
}
