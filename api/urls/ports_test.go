package urls_test

import (
	"strings"
	"testing"

	"boxgate/api"
)

// TestPorts: the token is shown once, settings are validated with all their mistakes, and the trail has no token.
func TestPorts(t *testing.T) {
	t.Parallel()
	f, id := serve(t)
	path := "/v2/box/" + id + "/config/ports"
	f.Expect(t, 404, "GET", path, "")
	f.Expect(t, 404, "DELETE", path, "")
	f.Expect(t, 200, "PUT", path, `{"except":[22,22,5],"host":"localhost:${PORT}","https_ports":[8443]}`,
		`"token":"port-token-secret"`, `"access":"token"`, `"except":[5,22]`, `"host":"localhost:${PORT}"`, `"https_ports":[8443]`, `"token_headers":["Authorization","x-port-token"]`)
	if got := f.Expect(t, 200, "GET", path, "", `"url":"https://{port}-`+id+`.preview.test"`); strings.Contains(got.Text, "secret") {
		t.Errorf("the token is shown again: %s", got.Text)
	}
	f.Expect(t, 200, "PUT", path, `{"access":"public"}`, `"access":"public"`, `"token_headers":[]`)
	f.Expect(t, 200, "PUT", path, `{"access":"token","keep_token":true}`)
	const own = "0123456789abcdefABCDEF._~+/-0123" // a token of the client's own
	f.Expect(t, 200, "PUT", path, `{"token":"`+own+`"}`, `"token":"`+own+`"`, `"token_fingerprint":"`+api.TokenFingerprint(own)+`"`)
	f.Expect(t, 200, "DELETE", path, "")
	f.Expect(t, 404, "GET", path, "")
	many := `{"except":[1` + strings.Repeat(",1", 64) + `]}`
	for body, want := range map[string]string{
		`{"access":"everybody"}`: "/access", `{"access":"public","keep_token":true}`: "/keep_token",
		`{"except":[0]}`: "/except", `{"except":[65536]}`: "/except", `{"https_ports":[-1]}`: "/https_ports", many: "at most 64",
		`{"token":"short"}`: "/token", `{"token":"` + strings.Repeat("a", 257) + `"}`: "/token", `{"token":"` + own + ` "}`: "/token",
		`{"token":"` + own + `","keep_token":true}`: "/token", `{"token":"` + own + `","access":"public"}`: "/token",
		`{"host":"a b"}`: "/host", `{"host":"a/b"}`: "/host", `{"host":"${HOST}"}`: "/host", `{"host":"a\r\nX: y"}`: "/host", `{"host":"user@host"}`: "/host",
		`{"host":"` + strings.Repeat("a", 254) + `"}`: "/host", `{"port":80}`: "/port",
	} {
		f.Expect(t, 422, "PUT", path, body, want)
	}
	for _, host := range []string{"localhost", "localhost:3000", "127.0.0.1:${PORT}", "[::1]:${PORT}", "${PORT}.app.test"} {
		f.Expect(t, 200, "PUT", path, `{"host":"`+host+`"}`, host)
	}
	f.Expect(t, 404, "PUT", "/v2/box/nobody/config/ports", `{}`)
	other := f.host.Add(t, api.CreateRequest{})
	f.Expect(t, 404, "GET", "/v2/box/"+other+"/config/ports", "")
}
