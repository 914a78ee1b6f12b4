package query

import "testing"

// TestRemoveQuery: no spelling that some server takes for the parameter stays, and nothing else goes.
func TestRemoveQuery(t *testing.T) {
	t.Parallel()
	for _, spelled := range []string{
		"api_key=1", "api_key", "API_Key=1", "api%5Fkey=1", "api%255fkey=1", "api.key=1", "api+key=1", "api_key[]=1", "api_key%5B0%5D=1", "%00api_key=1", "?api_key=1",
		"%u0061pi_key=1", "%U0061pi%u005Fkey=1", "ap%25u0069_key=1", "%u0061%u0070%u0069%u005f%u006b%u0065%u0079=1", "%u0000api_key=1", "api_key%u005b0%u005d=1",
		"%uFF41pi_key=1", "api%uff3fkey=1", "api_ke%uFF59", "%25uFF41pi_key=1", "api_key%uFF3Bx=1",
	} {
		for _, target := range []string{"/?" + spelled, "/?a=1&" + spelled, "/?" + spelled + "&a=1", "/?a=1;" + spelled} {
			if rest, _ := remove(target, "api_key"); rest != "/?" && rest != "/?a=1" {
				t.Errorf("%s: %s stays", target, rest)
			}
		}
	}
	for _, target := range []string{
		"/api_key=1", "/?api_key2=1", "/?my_api_key=1", "/?a=api_key", "/?x%uFF41pi_key=1", "/?other%u4e2d=1", "/?a=%u0061pi_key", "/?%u00=1", "/?%uzzzz=1&%u=2",
	} {
		if rest, own := remove(target, "api_key"); rest != target || len(own) > 0 {
			t.Errorf("%s: became %s without %q", target, rest, own)
		}
	}
}

func FuzzRemoveQuery(f *testing.F) {
	f.Add("/?a=1&%u0061pi_key=2;b")
	f.Add("/??api_key&%25u00&%uff")
	f.Fuzz(func(t *testing.T, target string) {
		rest, _ := remove(target, "api_key")
		if again, _ := remove(rest, "api_key"); again != rest {
			t.Errorf("%q: %q, and then %q", target, rest, again)
		}
	})
}
