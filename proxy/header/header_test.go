package header

import (
	"testing"

	"boxgate/relay/h1"
)

func TestVariants(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"X-Api-Key": true, "x-api-key": true, "X_API_KEY": true, "x-api_KEY": true,
		"X-Api-Keys": false, "X-Api.Key": false, "XApi-Key": false, "": false,
	} {
		if h1.IsVariant(name, "X-Api-Key") != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

func TestAltSvc(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{
		`h3=":443"; ma=1`: true, `h2="alt:443", h3-29=":443"`: true, `quic=":443"; v="46"`: true, `H3=":443"`: true, `%683=":443"`: true,
		"clear": false, `h2="alt.example.com:443"`: false,
	} {
		if offersHTTP3(value) != want {
			t.Errorf("%q: %v", value, !want)
		}
	}
}
