package differential

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/doctor"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// TestDoctorNamesTheCauseOfEveryRow: `gateway doctor` finds the properties of each server of the table.
func TestDoctorNamesTheCauseOfEveryRow(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t)
	root := pemFile(t, tls.Certificate{Certificate: [][]byte{issuer.root.cert.Raw}})
	l := &lab{World: harness.NewWorld(t, func(c *config.Config) { c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, root) })}
	for _, r := range table {
		if nightly.Enabled() || !r.nightly {
			l.rows = append(l.rows, r)
		}
	}
	l.serve(issuer)
	box := l.Create(map[string]any{"network_policy": harness.Custom("*." + domain)})
	for _, r := range l.rows {
		d := l.diagnose(box, r)
		var ids []string
		for _, f := range d.Findings {
			ids = append(ids, string(f.ID))
		}
		fmt.Printf("ROW\t%s\t%s\t%s\n", r.name, d.Verdict, strings.Join(ids, " "))
	}
}

// diagnose runs `gateway doctor` for a row.
func (l *lab) diagnose(box string, r row) (d doctor.Diagnosis) {
	l.T.Helper()
	out, code := l.GatewayCommand("doctor", box, fmt.Sprintf("%s:%d", r.host(), r.port()), "--path", "/page", "--idle", "0s", "--json")
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		l.T.Fatalf("%s: %d %s", r.name, code, out)
	}
	return d
}
