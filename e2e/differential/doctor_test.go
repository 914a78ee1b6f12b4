package differential

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/doctor"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// diagnoses are the causes that `gateway doctor` names for the servers of the table, in its order. For rows that are not here it finds no
// difference.
var diagnoses = map[string]string{
	"trailers": "trailers", "http10-chunked": "http10-chunked", "chunk-padded": "chunk-padding", "chunk-padded-extension": "chunk-padding",
	"length-twice": "length-repeated", "length-list": "length-repeated", "lengths-that-differ": "length-conflict", "length-negative": "length-invalid", "length-with-plus": "length-invalid",
	"identity": "coding-unusual", "identity-to-the-end": "coding-unusual", "encoding-comma": "coding-unusual",
	"chunked-twice": "chunked-twice", "length-and-chunked": "length-and-chunked", "folded-field": "folded-field", "bare-newlines": "bare-newlines",
	"blank-before-colon": "field-name", "parenthesis-in-name": "field-name", "blank-in-name": "field-name", "at-in-name": "field-name",
	"control-byte": "control-byte", "fields-130": "fields-many", "fields-200": "fields-many", "field-90k": "fields-large",
	"not-http": "not-http", "no-answer": "no-response", "ends-in-head": "head-cut",
	"ends-in-body": "body-cut", "ends-in-chunk": "body-cut", "ends-between-chunks": "body-cut", "http2-ends-in-body": "body-cut",
	"head": "response-late", "head-chunked": "body-cut", // a GET gets no content
	"http2-fields-130": "fields-many", "http2-fields-200": "fields-many",

	"tls11": "tls-old", "tls12-cbc-sha256": "suite-legacy", "tls12-rsa-exchange": "suite-legacy", "tls12-cbc-sha384": "suite-unsupported", "tls12-dhe": "suite-unsupported",
	"group-x448": "group-unsupported", "group-ffdhe2048": "group-unsupported",
	"key-rsa1024": "cert-weak-key", "key-rsa1024-above": "cert-weak-key", "key-rsa-pss": "cert-key",
	"chain-missing": "chain-incomplete", "chain-cross-signed": "chain-cross-signed", "chain-expired": "cert-expired",
	"cert-expired": "cert-expired", "cert-not-yet-valid": "cert-expired", "cert-of-another": "cert-other-name", "cert-wildcard-too-high": "cert-other-name",
	"cert-self-signed": "cert-untrusted", "cert-untrusted": "cert-untrusted", "cert-for-clients": "cert-purpose", "cert-common-name": "cert-no-name", "cert-negative-serial": "cert-serial",
	"alpn-unknown": "alpn-unknown", "client-certificate-needed": "client-certificate", "client-certificate-needed-tls12": "client-certificate",
	"small-hellos": "hello-large", "renegotiation": "renegotiation", "closes-at-once": "no-answer", "closes-after-hello": "no-answer", "not-tls": "no-tls",
	"resumption": "content-varies", "resumption-tls12": "content-varies", "java-resumption": "content-varies", "java-resumption-tls12": "content-varies",

	"ip4-dead-first": "address-dead", "ip6-dead-ip4-alive": "address-dead", "ip4-dead-ip6-alive": "address-dead",
	"websocket": "upgrade-unasked", "upgrade-unknown": "upgrade-unasked",
	"answers-at-the-end": "response-late", "answers-at-the-notice": "response-late", "gives-up-at-the-end": "response-late",
	"banner": "no-tls not-http", "banner-dead-first": "address-dead no-tls not-http",
	"ntlm": "connection-login", "negotiate": "connection-login", "ntlm-http1": "connection-login", "ntlm-users": "connection-login",
	"plain-url-rooted": "no-tls", "plain": "no-tls", "plain-length-twice": "no-tls length-repeated", "plain-chunk-padded": "no-tls chunk-padding", "plain-http10": "no-tls",
	"plain-answers-at-the-end": "no-tls response-late", "plain-dead-first": "address-dead no-tls",

	"lenient-trailers": "trailers", "lenient-http10-chunked": "http10-chunked content-differs", "lenient-chunked-twice": "chunked-twice", "lenient-length-and-chunked": "length-and-chunked",
	"lenient-folded-field": "folded-field", "lenient-blank-before-colon": "field-name", "lenient-bare-newlines": "bare-newlines",
	"lenient-parenthesis-in-name": "field-name", "lenient-blank-in-name": "field-name", "lenient-at-in-name": "field-name", "lenient-fields-200": "fields-many",
	"legacy-tls12-cbc-sha256": "suite-legacy", "legacy-tls12-cbc-sha384": "suite-unsupported", "legacy-tls12-rsa-exchange": "suite-legacy",
}

// unseen are the rows whose difference is in the client, which a diagnosis cannot see, with the ID under which it says so.
var unseen = map[string]string{
	"client-rsa-tls12": "client-tls", "client-rsa-tls13": "client-tls", "client-rsa-exchange": "client-tls", "client-dhe": "client-tls", "server-name-rooted": "client-tls",
	"legacy-client-rsa-tls12": "client-tls", "legacy-client-rsa-exchange": "client-tls",
	"url-rooted": "client-http", "host-rooted": "client-http", "host-rooted-http2": "client-http", "websocket": "client-http", "upgrade-unknown": "client-http",
	"head": "client-http", "head-chunked": "client-http", "upload": "client-http", "upload-http1": "client-http", "upload-expected": "client-http", "upload-refused": "client-http",
	"ntlm": "client-http", "negotiate": "client-http", "ntlm-http1": "client-http", "ntlm-users": "client-http",
	"answers-at-the-end": "client-http", "answers-at-the-notice": "client-http", "gives-up-at-the-end": "client-http", "plain-answers-at-the-end": "client-http", "pipelined": "client-http",
}

// worse are the verdicts for rows that work directly and fail intercepted; eased are those that an option repairs.
const (
	worse = "http10-chunked lengths-that-differ length-negative length-with-plus chunked-twice length-and-chunked folded-field bare-newlines blank-before-colon parenthesis-in-name " +
		"blank-in-name at-in-name control-byte fields-130 fields-200 field-90k ends-in-head http2-fields-130 http2-fields-200 tls11 tls12-cbc-sha256 tls12-rsa-exchange tls12-cbc-sha384 " +
		"tls12-dhe group-x448 group-ffdhe2048 key-rsa1024 key-rsa1024-above key-rsa-pss cert-common-name cert-negative-serial alpn-unknown websocket upgrade-unknown legacy-tls12-cbc-sha384 lenient-http10-chunked"
	eased = "http10-chunked chunked-twice length-and-chunked folded-field bare-newlines blank-before-colon parenthesis-in-name blank-in-name at-in-name fields-130 fields-200 " +
		"http2-fields-130 http2-fields-200 tls12-cbc-sha256 tls12-rsa-exchange"
)

// ofGate are the rows of the gate: one of each group of causes. The other causes have tests in doctor/cause.
const ofGate = "length http2-alone fields-200 folded-field lengths-that-differ length-list tls12-rsa-exchange tls12-dhe group-x448 key-rsa-pss cert-negative-serial cert-common-name " +
	"chain-cross-signed cert-expired alpn-unknown small-hellos client-certificate-needed ip4-dead-first closes-at-once banner plain resumption lenient-folded-field legacy-tls12-cbc-sha256 client-dhe"

// TestDoctorNamesTheCauseOfEveryRow: `gateway doctor` names the cause of each row of the table, says what it cannot see, and tries the
// options that it advises.
func TestDoctorNamesTheCauseOfEveryRow(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t)
	root := pemFile(t, tls.Certificate{Certificate: [][]byte{issuer.root.cert.Raw}})
	l := &lab{World: harness.NewWorld(t, func(c *config.Config) { c.Proxy.UpstreamCAFiles = append(c.Proxy.UpstreamCAFiles, root) })}
	for _, r := range table {
		if nightly.Enabled() || has(ofGate, r.name) {
			l.rows = append(l.rows, r)
		}
	}
	l.serve(issuer)
	rules := map[string]any{}
	for _, r := range l.rows {
		if key, value, ok := strings.Cut(r.option, ": "); ok {
			rules[fmt.Sprintf("%s:%d", r.host(), r.port())] = map[string]any{
				"headers": map[string]string{"X-Key": harness.Canary}, key: map[string]any{"true": true, "legacy": "legacy"}[value],
			}
		}
	}
	box := l.Create(map[string]any{"network_policy": harness.Custom("*." + domain), "attach_headers": rules})
	for _, r := range l.rows {
		t.Run(r.name, func(t *testing.T) { l.examine(t, box, r) })
	}
	l.Until("no box is left", func() bool { return len(l.boxes()) == 1 })
}

// examine diagnoses a row.
func (l *lab) examine(t *testing.T, box string, r row) {
	out, code := l.GatewayCommand("doctor", box, fmt.Sprintf("%s:%d", r.host(), r.port()), "--path", "/page", "--idle", "0s", "--json")
	var d doctor.Diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		t.Fatalf("%d %s", code, out)
	}
	var ids, options []string
	for _, f := range d.Findings {
		ids = append(ids, string(f.ID))
	}
	for _, w := range d.Ways {
		if w.Name == doctor.Eased && w.Works {
			options = append(options, "eased")
		}
	}
	got := strings.Join(ids, " ")
	if r.name == "renegotiation" { // the server takes one connection at a time: the other ways fail
		got, d.Verdict = ids[0], doctor.Same
	}
	if want := diagnoses[r.name]; got != want {
		t.Errorf("the causes are %q, want %q\n%s", got, want, out)
	}
	if failed := d.Verdict == doctor.Worse || d.Verdict == doctor.Unreachable; r.name != "renegotiation" && failed != (code == 1) {
		t.Errorf("exit status %d for the verdict %s", code, d.Verdict)
	}
	if got := d.Verdict == doctor.Worse; got != has(worse, r.name) {
		t.Errorf("the verdict is %s\n%s", d.Verdict, out)
	}
	if got := len(options) > 0; got != has(eased, r.name) {
		t.Errorf("an option that works was found: %v\n%s", got, out)
	}
	if want := unseen[r.name]; want != "" && !slices.ContainsFunc(d.NotSeen, func(u doctor.Unseen) bool { return u.ID == want }) {
		t.Errorf("it does not say that it cannot see %s", want)
	}
}

func has(list, word string) bool { return slices.Contains(strings.Fields(list), word) }

// boxes lists the boxes.
func (l *lab) boxes() (list []json.RawMessage) {
	if err := l.Client.Do(l.T.Context(), "GET", "/v2/box", nil, &list); err != nil {
		l.T.Error(err)
	}
	return list
}

// TestDiagnosesAreOfRows: the lists name rows of the table, and each difference of docs/limits.md is diagnosed or said to be unseen.
func TestDiagnosesAreOfRows(t *testing.T) {
	t.Parallel()
	all := names()
	for name := range diagnoses {
		if !has(all, name) {
			t.Errorf("no row is named %s", name)
		}
	}
	for _, name := range strings.Fields(strings.Join(append(mapKeys(unseen), worse, eased, ofGate), " ")) {
		if !has(all, name) {
			t.Errorf("no row is named %s", name)
		}
	}
	for at, is := range readDocument(t) {
		if diagnoses[at.server] == "" && unseen[at.server] == "" {
			t.Errorf("%s: %v, and no diagnosis says why", at.server, is)
		}
	}
}

func mapKeys(m map[string]string) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
