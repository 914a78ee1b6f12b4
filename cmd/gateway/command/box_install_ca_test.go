package command

import (
	"strings"
	"testing"

	"boxgate/cmd/gateway/command/cli"
)

// TestInstallCAIsForContainers: a launched box is told apart from an attached container, with what to do instead.
func TestInstallCAIsForContainers(t *testing.T) {
	serveInMemory(t)
	for args, want := range map[string]string{"box install-ca demo": "gateway ca --box demo --bundle", "box install-ca nope": `"nope"`} {
		if out, status := runCommandLine(t, strings.Fields(args)...); status != cli.ExitFailed || !strings.Contains(out, want) {
			t.Errorf("%s: exit %d\n%s", args, status, out)
		}
	}
}
