package dialect

import (
	"bytes"
	"encoding/json"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"boxgate/policy"
)

// TestParseDaytona: networkBlockAll wins over the lists, the lists together allow, and without them everything is allowed.
func TestParseDaytona(t *testing.T) {
	t.Parallel()
	custom := func(domains, cidrs []string) policy.Spec {
		return policy.Spec{Mode: policy.ModeCustom, AllowedDomains: domains, AllowedCIDRs: cidrs}
	}
	for doc, want := range map[string]policy.Spec{
		`{"networkBlockAll":true}`:  {Mode: policy.ModeDenyAll},
		`{"networkBlockAll":false}`: {Mode: policy.ModeAllowAll},
		`{"networkBlockAll":true,"networkAllowList":"192.0.2.0/24","domainAllowList":"a.test"}`: {Mode: policy.ModeDenyAll},
		`{"networkAllowList":"192.0.2.0/24"}`:                                                   custom(nil, []string{"192.0.2.0/24"}),
		`{"networkAllowList":" 208.80.154.232/32 ,199.16.156.103/32,, 192.168.1.0/16,"}`:        custom(nil, []string{"208.80.154.232/32", "199.16.156.103/32", "192.168.0.0/16"}),
		`{"networkAllowList":"10.0.0.1/8,10.0.0.2/8"}`:                                          custom(nil, []string{"10.0.0.0/8"}),
		`{"domainAllowList":"example.com, *.daytona.io"}`:                                       custom([]string{"example.com", "*.daytona.io"}, nil),
		`{"networkBlockAll":false,"domainAllowList":"a.test","networkAllowList":"0.0.0.0/0"}`:   custom([]string{"a.test"}, []string{"0.0.0.0/0"}),
	} {
		spec, headers, err := Parse([]byte(doc))
		if alone, errAlone := ParseDaytona([]byte(doc)); err != nil || errAlone != nil || headers != nil || !reflect.DeepEqual(spec, want) || !reflect.DeepEqual(alone, want) {
			t.Errorf("%s: %+v, %v", doc, spec, err)
		}
	}
}

// FuzzDaytona: settings that are accepted open only what their lists name, and mean the same when they are written and read again.
func FuzzDaytona(f *testing.F) {
	for _, s := range []string{
		`{"networkBlockAll":true}`, `{"networkBlockAll":false}`, `{"networkAllowList":"192.0.2.1/24,,198.51.100.7/32 "}`, `{"domainAllowList":"a.test, *.b.test"}`,
		`{"networkBlockAll":true,"networkAllowList":"::/0"}`, `{"networkAllowList":""}`, `{"domainAllowList":"*"}`, `{"domainAllowList":"a.test:443,service:x,Ä.test"}`, `{}`, `"deny-all"`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := ParseDaytona(data)
		if err != nil {
			checkProblems(t, err)
			return
		}
		var given map[string]any
		if err := json.Unmarshal(data, &given); err != nil {
			t.Fatal(err)
		}
		blocked, lists := given[daytonaBlock] == true, given[daytonaCIDRs] != nil || given[daytonaDomains] != nil
		if (spec.Mode == policy.ModeDenyAll) != blocked || (spec.Mode == policy.ModeAllowAll) != (!blocked && !lists) || spec.DefaultAllow() && spec.Mode != policy.ModeAllowAll {
			t.Fatalf("%s became %+v", data, spec)
		}
		if _, err := policy.Compile(spec, policy.Options{Version: 1}); err != nil {
			t.Fatalf("%s does not compile: %v", data, err)
		}
		out, err := Convert(data, Daytona, Daytona)
		if err != nil {
			t.Fatalf("%s cannot be written: %v", data, err)
		}
		again, err := ParseDaytona(out)
		if err != nil || !reflect.DeepEqual(again, spec) {
			t.Fatalf("%s was written as %s: %+v, %v", data, out, again, err)
		}
		if twice, err := Convert(out, Daytona, Daytona); err != nil || !bytes.Equal(twice, out) {
			t.Fatalf("%s and then %s, %v", out, twice, err)
		}
	})
}

// TestDaytonaListTakesNoMoreThanItsText: a list of megabytes with millions of entries, or of none, is refused without memory for each. The text itself is copied a few times.
func TestDaytonaListTakesNoMoreThanItsText(t *testing.T) {
	for _, list := range []string{strings.Repeat(",", 4<<20), strings.Repeat("a,", 2<<20)} {
		data := []byte(`{"domainAllowList":"` + list + `"}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ParseDaytona(data)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; err == nil || used > 9*uint64(len(data)) {
			t.Errorf("%d bytes for a text of %d: %v", used, len(data), err)
		}
	}
}
