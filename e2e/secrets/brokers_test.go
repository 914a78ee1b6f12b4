package secrets

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	gossh "golang.org/x/crypto/ssh"

	"boxgate/audit"
	"boxgate/e2e/harness"
	"boxgate/internal/testnet/sshd"
	"boxgate/policy/name"
	"boxgate/rule/sign/signtest"
)

const (
	issuerHost, issuerAddr = "issuer.example.com", "198.51.100.140"
	brokerHost, brokerAddr = "broker.example.com", "198.51.100.141"
	mutualHost, mutualAddr = "mutual.example.com", "198.51.100.142"
	proxyHost, proxyAddr   = "decides.example.net", "198.51.100.143"
	baseHost, baseAddr     = "db.example.com", "198.51.100.144"
)

// brokers are servers that issue credentials, and servers that accept only credentials made by the gateway: OAuth2 with
// rotating refresh tokens, AWS STS and the secret managers of AWS and Google, AWS and HMAC signatures, client
// certificates, tokens for a proxy, PostgreSQL and SSH.
type brokers struct {
	dir   string // directory of the sources' files
	mark  string
	forge *sshd.Server
	base  *harness.Postgres

	mu       sync.Mutex
	down     bool     // issuers refuse, and quote the request
	refresh  []string // accepted refresh tokens, newest first
	issued   int      // number of access tokens, and of refresh tokens except the first
	tokens   []string // of the forwarding proxy
	accepted map[string]int
	wrong    []string // credentials that were refused
}

func (b *brokers) canary(kind string) string { return "canary-" + kind + "-" + b.mark + "-end" }

const brokerRegion = "eu-central-1"

// newBrokers creates the servers, before any gateway uses them, and the files of the sources.
func newBrokers(w *harness.World, mark string, secrets map[string]string) *brokers {
	t := w.T
	t.Helper()
	b := &brokers{dir: t.TempDir(), mark: mark, accepted: map[string]int{}, forge: sshd.New(t)}
	b.refresh = []string{b.canary("refresh-0")}
	ca := newClientCA(t)
	cert, key := ca.issue(t, "box", time.Now().Add(time.Hour))
	for name, content := range map[string]string{
		"first": b.refresh[0], "client": b.canary("client"), "gcp-token": b.canary("gcp-token"), "hmac": b.canary("hmac"), "db": b.canary("db"),
		"aws":   `{"Version": 1, "AccessKeyId": "AKIABASE", "SecretAccessKey": "` + b.canary("aws") + `"}`,
		"forge": b.forge.Key, "cert": string(cert) + string(key),
	} {
		writeFile(t, b.dir, name, []byte(content))
		if len(content) < 100 {
			secrets[name] = content
		}
	}
	keyMaterial(t, secrets, b.forge.Key, string(key))
	for host, addr := range map[string]string{issuerHost: issuerAddr, brokerHost: brokerAddr, mutualHost: mutualAddr, proxyHost: proxyAddr, forge: forgeAddr} {
		if err := w.Net.AddHost(host, addr); err != nil {
			t.Fatal(err)
		}
	}
	for host, handler := range map[string]http.Handler{issuerHost: b.issuer(), brokerHost: b.broker(), proxyHost: http.HandlerFunc(b.proxy)} {
		if err := w.Net.ServeHTTP(host, handler); err != nil {
			t.Fatal(err)
		}
	}
	wants := &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool()}
	if err := w.Net.ServeTLS(mutualHost, 443, http.HandlerFunc(whoAmI), wants); err != nil {
		t.Fatal(err)
	}
	b.base = w.ServePostgres(harness.Postgres{Host: baseHost, Addr: baseAddr, Password: b.canary("db")})
	go b.forge.Serve(w.ListenBeside(forgeAddr + ":22"))
	return b
}

// keyMaterial adds the secret parts of private keys: a line of their text, and the number.
func keyMaterial(t *testing.T, secrets map[string]string, ssh, certificate string) {
	t.Helper()
	key, err := gossh.ParseRawPrivateKey([]byte(ssh))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(certificate))
	own, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	number, err := own.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(ssh, "\n")
	secrets["the SSH key's text"], secrets["the SSH key"] = lines[len(lines)-4][8:40], string(key.(*ed25519.PrivateKey).Seed())
	secrets["the certificate's text"], secrets["the certificate's key"] = strings.Split(certificate, "\n")[1][40:60], string(number)
}

// configuration returns the configuration of the sources that use the servers.
func (b *brokers) configuration() string {
	text := `  first: {file: DIR/first}
  client: {file: DIR/client}
  aws: {file: DIR/aws}
  gcp-token: {file: DIR/gcp-token}
  hmac: {file: DIR/hmac}
  db: {file: DIR/db}
  forge: {file: DIR/forge, document: true}
  cert: {file: DIR/cert, document: true}
  oauth: {oauth2: {token_url: "AT/token", grant: refresh_token, client_id: me, client_secret: client, refresh_token: first}}
  role: {aws_role: {role_arn: "arn:aws:iam::123456789012:role/box", region: REGION, credentials: aws, endpoint: "AT"}}
  aws-secret: {aws_secret: {id: prod/key, region: REGION, credentials: aws, endpoint: "AT"}}
  gcp-secret: {gcp_secret: {secret: projects/p/secrets/n, token: gcp-token, endpoint: "AT"}}
`
	return strings.NewReplacer("DIR", b.dir, "AT", "https://"+issuerAddr, "REGION", brokerRegion).Replace(text)
}

// rules adds the header rules that use the sources.
func (b *brokers) rules(to map[string]any) {
	secret := func(name string) map[string]any { return map[string]any{"secret": name} }
	at := func(path string, entry map[string]any) map[string]any {
		entry["match"] = map[string]any{"path": map[string]string{"prefix": path}}
		return entry
	}
	to[brokerHost] = []any{
		at("/oauth", map[string]any{"headers": map[string]any{"Authorization": map[string]string{"secret": "oauth", "prefix": "Bearer "}}, "scrub": true}),
		at("/managers", map[string]any{"headers": map[string]any{"X-Aws": secret("aws-secret"), "X-Gcp": secret("gcp-secret")}, "scrub": true}),
		at("/role", map[string]any{"sign": map[string]any{"aws": map[string]any{"credentials": secret("role"), "region": brokerRegion, "service": "execute-api"}}, "scrub": true}),
		at("/hmac", map[string]any{"sign": map[string]any{"hmac": map[string]any{"key": secret("hmac"), "header": "X-Signature", "template": "{method}{target}"}}}),
		at("/forward", map[string]any{"forward_url": "https://" + proxyHost + "/in"}),
	}
	to[mutualHost] = map[string]any{"client_certificate": secret("cert")}
	to[baseHost+":5432"] = map[string]any{"postgres": map[string]any{"user": "app", "database": "orders", "password": secret("db")}}
	to[forge+":22"] = map[string]any{"ssh": map[string]any{"user": sshd.User, "key": secret("forge"), "host_keys": []string{b.forge.HostKey}}}
}

// issuer answers clients that prove their identity.
func (b *brokers) issuer() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", b.issues(func(r *http.Request, body []byte) any {
		_ = r.ParseForm()
		user, password, _ := r.BasicAuth()
		given := r.PostForm.Get("refresh_token")
		if user != "me" || password != b.canary("client") || !slices.Contains(b.refresh, given) {
			return nil
		}
		b.issued++
		b.refresh = []string{b.canary(fmt.Sprint("refresh-", b.issued)), given}
		return map[string]any{"access_token": b.access(), "token_type": "bearer", "expires_in": 3600, "refresh_token": b.refresh[0]}
	}))
	mux.HandleFunc("POST /{$}", b.issues(func(r *http.Request, body []byte) any {
		service := "sts"
		if r.Header.Get("X-Amz-Target") != "" {
			service = "secretsmanager"
		}
		if signtest.Verify(r, body, signtest.Keys{ID: "AKIABASE", Secret: b.canary("aws")}, brokerRegion, service) != nil {
			return nil
		}
		if service == "secretsmanager" {
			return map[string]any{"SecretString": b.canary("aws-secret")}
		}
		return fmt.Sprintf("<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>%s</SecretAccessKey>"+
			"<SessionToken>%s</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>",
			b.canary("role"), b.canary("session"), time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	mux.HandleFunc("GET /v1/projects/p/secrets/n/versions/latest:access", b.issues(func(r *http.Request, _ []byte) any {
		if r.Header.Get("Authorization") != "Bearer "+b.canary("gcp-token") {
			return nil
		}
		return map[string]any{"payload": map[string]any{"data": []byte(b.canary("gcp-secret"))}}
	}))
	return mux
}

// access returns the latest access token.
func (b *brokers) access() string { return b.canary(fmt.Sprint("access-", b.issued)) }

// issues returns a page. If answer returns nil, the client is refused with a quote of its request.
func (b *brokers) issues(answer func(r *http.Request, body []byte) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		b.mu.Lock()
		defer b.mu.Unlock()
		var a any
		if !b.down {
			a = answer(r, body)
		}
		if text, ok := a.(string); ok {
			w.Header().Set("Content-Type", "text/xml")
			_, _ = io.WriteString(w, text)
			return
		}
		if a == nil {
			w.WriteHeader(http.StatusForbidden)
			a = map[string]any{"error": "access_denied", "error_description": fmt.Sprint(r.Header, string(body))}
		}
		_ = json.NewEncoder(w).Encode(a)
	}
}

// broker accepts credentials made by the gateway, and echoes them.
func (b *brokers) broker() http.Handler {
	sum := func(r *http.Request) string {
		mac := hmac.New(sha256.New, []byte(b.canary("hmac")))
		_, _ = io.WriteString(mac, r.Method+r.RequestURI)
		return hex.EncodeToString(mac.Sum(nil))
	}
	keys := signtest.Keys{ID: "ASIAROLE", Secret: b.canary("role"), Token: b.canary("session")}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		ok := map[string]func() bool{
			"/oauth": func() bool { return r.Header.Get("Authorization") == "Bearer "+b.access() },
			"/managers": func() bool {
				return r.Header.Get("X-Aws") == b.canary("aws-secret") && r.Header.Get("X-Gcp") == b.canary("gcp-secret")
			},
			"/role": func() bool { return signtest.Verify(r, nil, keys, brokerRegion, "execute-api") == nil },
			"/hmac": func() bool { return r.Header.Get("X-Signature") == sum(r) },
		}[r.URL.Path]
		if ok == nil || !ok() {
			b.wrong = append(b.wrong, fmt.Sprint(r.URL.Path, r.Header))
			w.WriteHeader(http.StatusUnauthorized)
		} else {
			b.accepted[r.URL.Path]++
			fmt.Fprintln(w, "accepted")
		}
		_ = r.Header.Write(w)
	})
}

// proxy handles the requests that are forwarded to the proxy.
func (b *brokers) proxy(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = append(b.tokens, r.Header.Get("Vercel-Sandbox-Oidc-Token"))
	b.accepted["/forward"]++
	fmt.Fprintln(w, "accepted")
}

func (b *brokers) counts() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Sprint(b.accepted)
}

func (b *brokers) setDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
}

var brokerPaths, brokerWays = []string{"/oauth", "/managers", "/role", "/hmac", "/forward"}, []string{"--http1.1", "--http2"}

// sshOut is the command by which a box logs in to the SSH server.
const sshOut = "ssh -o BatchMode=yes " + sshd.User + "@" + forge + " 'echo accepted' 2>&1"

// used fails the test unless every server accepts the box. It returns the box's output.
func (b *brokers) used(in *harness.Intruder) string {
	t := in.T
	t.Helper()
	before := b.counts()
	var out strings.Builder
	for _, way := range brokerWays {
		for _, path := range brokerPaths {
			got := in.MustSh(in.Box, "curl -sS "+way+" https://"+brokerHost+path)
			if out.WriteString(got); !strings.HasPrefix(got, "accepted\n") {
				t.Errorf("%s %s: %s; %q", way, path, got, b.wrong)
			}
		}
		got := in.MustSh(in.Box, "curl -sS "+way+" https://"+mutualHost+"/")
		if out.WriteString(got); got != "I am box\n" {
			t.Errorf("%s: %s", way, got)
		}
	}
	got, _ := in.Sh(in.Box, sshOut)
	if out.WriteString(got); !strings.HasSuffix(got, "accepted\n") {
		t.Errorf("ssh: %s", got)
	}
	if err := b.query(in); err != nil {
		t.Errorf("PostgreSQL: %v", err)
	}
	if b.counts() == before {
		t.Error("nothing was accepted")
	}
	return out.String()
}

// query logs in to the database and queries the current user.
func (b *brokers) query(in *harness.Intruder) error {
	in.MustSh(in.Box, "getent ahosts "+baseHost)
	c, err := pgconn.ParseConfig("host=" + baseHost + " user=app dbname=orders password=none sslmode=disable")
	if err != nil {
		return err
	}
	c.TLSConfig = &tls.Config{ServerName: baseHost, RootCAs: in.Roots}
	c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{baseAddr}, nil }
	c.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		return in.Connect(netip.MustParseAddrPort(baseAddr + ":5432"))
	}
	conn, err := pgconn.ConnectConfig(in.T.Context(), c)
	if err != nil {
		return err
	}
	defer conn.Close(in.T.Context())
	got := conn.ExecParams(in.T.Context(), "select current_user", nil, nil, nil, nil).Read()
	if got.Err == nil && (len(got.Rows) != 1 || string(got.Rows[0][0]) != "app") {
		got.Err = fmt.Errorf("the user is %q", got.Rows)
	}
	return got.Err
}

// requestOtherHost sends the same requests to a host without rules.
func (b *brokers) requestOtherHost(in *harness.Intruder) {
	for _, way := range brokerWays {
		for _, path := range brokerPaths {
			in.MustSh(in.Box, "curl -k -sS -o /dev/null "+way+" https://www.example.com"+path)
		}
	}
}

// failSources makes all sources fail with servers that quote their requests, and tests that no destination receives a
// request. Then it makes them work again.
func (b *brokers) failSources(in *harness.Intruder) string {
	t := in.T
	t.Helper()
	b.setDown(true)
	files, err := filepath.Glob(b.dir + "/*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Rename(f, f+".away"); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	names := []string{"first", "client", "aws", "gcp-token", "hmac", "db", "forge", "cert", "oauth", "role", "aws-secret", "gcp-secret"}
	for _, name := range names {
		text, exit := in.GatewayCommand("secret", "refresh", name)
		if out.WriteString(text); exit == 0 {
			t.Errorf("secret %s was refreshed: %s", name, text)
		}
	}
	b.assertRefused(in, &out)
	for _, f := range files {
		if err := os.Rename(f+".away", f); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names[8:] { // their servers are down, but their inputs exist
		text, exit := in.GatewayCommand("secret", "refresh", name)
		if out.WriteString(text); exit == 0 {
			t.Errorf("secret %s was refreshed: %s", name, text)
		}
	}
	b.setDown(false)
	in.Until("all sources work again", func() bool {
		again := 0
		for _, name := range names {
			text, exit := in.GatewayCommand("secret", "refresh", name)
			if out.WriteString(text); exit == 0 {
				again++
			}
		}
		return again == len(names)
	})
	return out.String()
}

// assertRefused fails the test if a request or a login is made, or the log does not name the rule and the secret.
func (b *brokers) assertRefused(in *harness.Intruder, out *strings.Builder) {
	t := in.T
	t.Helper()
	before, logins := b.counts(), strings.Count(b.base.Log(), "connection authorized")
	ask := func(host, path, secret string) {
		for _, way := range brokerWays {
			text := in.MustSh(in.Box, "curl -sS "+way+" https://"+host+path)
			if out.WriteString(text); !strings.Contains(text, "secret_unavailable") {
				t.Errorf("%s without its source: %s", secret, text)
			}
		}
		in.Event(in.Box, func(e audit.Event) bool {
			return e.Reason == name.ReasonSecretUnavailable && e.Rule == host && e.Path == path && strings.Contains(e.Error, `secret "`+secret+`"`)
		})
	}
	ask(brokerHost, "/oauth", "oauth")
	ask(brokerHost, "/role", "role")
	ask(brokerHost, "/hmac", "hmac")
	ask(mutualHost, "/", "cert")
	text := in.MustSh(in.Box, "curl -sS https://"+brokerHost+"/managers")
	if out.WriteString(text); !strings.Contains(text, "secret_unavailable") {
		t.Errorf("managers that fail: %s", text)
	}
	if text, code := in.Sh(in.Box, sshOut); code == 0 || !strings.Contains(text, "is not available") {
		t.Errorf("ssh without a key: %s", text)
	}
	if err := b.query(in); err == nil || !strings.Contains(err.Error(), "is not available") {
		t.Errorf("PostgreSQL without a password: %v", err)
	}
	for rule, secret := range map[string]string{forge + ":22": "forge", baseHost + ":5432": "db"} {
		in.Event(in.Box, func(e audit.Event) bool {
			return e.Reason == name.ReasonSecretUnavailable && e.Rule == rule && strings.Contains(e.Error, `secret "`+secret+`"`)
		})
	}
	if b.counts() != before || strings.Count(b.base.Log(), "connection authorized") != logins {
		t.Errorf("without sources: %s, before %s", b.counts(), before)
	}
}

// issuedSecrets adds the credentials issued during the test.
func (b *brokers) issuedSecrets(to map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range b.issued + 1 {
		to[fmt.Sprint("refresh token ", n)] = b.canary(fmt.Sprint("refresh-", n))
		to[fmt.Sprint("access token ", n)] = b.canary(fmt.Sprint("access-", n))
	}
	for _, kind := range []string{"role", "session", "aws", "aws-secret", "gcp-secret"} {
		to[kind] = b.canary(kind)
	}
	for n, token := range b.tokens {
		parts := strings.Split(token, ".")
		to[fmt.Sprint("forwarding token ", n)] = parts[len(parts)-1]
	}
}
