package policy

import "testing"

func TestIsPublic(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"example.com": true, "a.b.example.co.uk": true, "evil.example.net": true, "x.github.io": true, "foo.ck": true, "co.uk": true,
		"xn--bcher-kva.example.com": true, "x.xn--p1ai": true, "host.dev": true,

		"localhost": false, "a.localhost": false, "localhost.localdomain": false, "router": false, "com": false, "printer.local": false,
		"api.internal": false, "x.home.arpa": false, "4.3.2.1.in-addr.arpa": false, "x.test": false, "x.example": false, "x.invalid": false,
		"x.onion": false, "x.alt": false, "x.lan": false, "x.home": false, "x.corp": false, "svc.cluster.local": false, "x.intranet": false,
	} {
		n, err := ParseName(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := n.IsPublic(); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
	if (Name{}).IsPublic() || (Name{}).IsLoopback() || (Name{}).IsWithin(Name{}) {
		t.Error("the zero name is something")
	}
}
