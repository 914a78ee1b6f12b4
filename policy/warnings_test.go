package policy

import "testing"

// TestShortSecretsAreWarnedOf: a value that is too short to be masked stays visible, and the user must be told.
func TestShortSecretsAreWarnedOf(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		`{"a.example.com": {"headers": {"X-Short": "1234567", "X-Long": "12345678", "X-Source": {"secret": "s"}}, "scrub": true}}`: "/attach_headers/a.example.com/headers/X-Short",
		`{"a.example.com": {"placeholders": {"KEY": "short"}, "scrub": true}}`:                                                     "/attach_headers/a.example.com/placeholders/KEY",
		`{"a.example.com": {"headers": {"X-Short": "1234567"}}}`:                                                                   "",
	} {
		rules, err := ParseHeaderRules([]byte(doc), nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Compile(Spec{Mode: ModeAllowAll}, rules, NewProtected(nil, nil), 1)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, p := range c.Warnings() {
			got += p.Pointer
		}
		if got != want {
			t.Errorf("%s: warnings for %q, want %q", doc, got, want)
		}
	}
}

// TestShownHeadersAreWarnedOf: a user who has the gateway set a header that servers show again must be told.
func TestShownHeadersAreWarnedOf(t *testing.T) {
	t.Parallel()
	rules, err := ParseHeaderRules([]byte(`{"a.example.com": {"headers": {"Authorization": "secret-1", "X-Goog-Meta-Owner": "secret-2", "Sec-WebSocket-Protocol": {"secret": "s"}}}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compile(Spec{Mode: ModeAllowAll}, rules, NewProtected(nil, nil), 1)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, p := range c.Warnings() {
		got += p.Pointer + " "
	}
	if want := "/attach_headers/a.example.com/headers/Sec-Websocket-Protocol /attach_headers/a.example.com/headers/X-Goog-Meta-Owner "; got != want {
		t.Errorf("warnings for %q, want %q", got, want)
	}
}
