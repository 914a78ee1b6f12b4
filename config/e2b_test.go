package config

import (
	"strings"
	"testing"
)

// Ports that are open to anyone by default need both switches.
func TestE2B(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"e2b: {enabled: true}":                                                      "",
		"e2b: {enabled: true, public_traffic: true}":                                "needs ingress.public_ports",
		"e2b: {public_traffic: true}":                                               "has no effect without e2b.enabled",
		"e2b: {enabled: true, public_traffic: true}\ningress: {public_ports: true}": "",
		"e2b: {enable: true}":                                                       "enabled",
	} {
		_, err := Parse("f.yaml", []byte(text), nil)
		if got := errorText(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if got := (E2B{}).APIHost("boxes.example"); got != "api.boxes.example" {
		t.Error(got)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
