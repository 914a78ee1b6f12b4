package command

import (
	"strings"
	"testing"

	"boxgate/config"
)

// TestGreeting: the greeting contains everything needed next, and leaves out listeners that are off.
func TestGreeting(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	text := greeting(cfg)
	for _, part := range []string{
		"/run/boxgate/admin.sock, http://127.0.0.1:8600\n", "/var/lib/boxgate/api-key\n", "https://BOX-8000.preview.localhost\n",
		"http://127.0.0.1:9600/metrics\n", "sudo gateway box create",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
	cfg.Admin.Listen, cfg.Metrics.Listen, cfg.Ingress.HTTPS = "", "", "127.0.0.1:8443"
	if text = greeting(cfg); strings.Contains(text, "http://") || !strings.Contains(text, "preview.localhost:8443\n") {
		t.Error(text)
	}
	if cfg.Ingress.HTTPS = ""; !strings.Contains(greeting(cfg), "ingress.https is off") {
		t.Error(greeting(cfg))
	}
}
