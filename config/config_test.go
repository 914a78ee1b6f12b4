package config

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"boxgate/internal/nightly"
)

func TestConfigDefaultsAreValid(t *testing.T) {
	if _, err := Load("", nil); err != nil {
		t.Fatal(err)
	}
}

// adminOIDC returns a configuration with an identity provider for the dashboard, with one other line.
func adminOIDC(line string) string {
	lines := []string{"issuer: 'https://accounts.example.org'", "client_id: a", "redirect_url: 'https://gate.example.org/ui/oidc/callback'", "groups: {a: admin}"}
	key, _, _ := strings.Cut(line, ":")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, key+":") })
	return "admin:\n  hosts: [gate.example.org]\n  oidc: {" + strings.Join(append(lines, line), ", ") + "}"
}

func TestConfigMistakesNameTheRemedy(t *testing.T) {
	for name, c := range map[string]struct{ yaml, want string }{
		"unknown key":         {"stat_dir: /x", `unknown key "stat_dir"; did you mean "state_dir"?`},
		"unknown nested key":  {"dns:\n  upstream: [1.1.1.1:53]", `unknown key "dns.upstream"; did you mean "dns.upstreams"?`},
		"host bits":           {"network: {pool_v4: 10.200.0.1/16}", `"10.200.0.1/16" has host bits set; use "10.200.0.0/16"`},
		"wrong family":        {"network: {pool_v6: 10.0.0.0/8}", "not a CIDR of the right family"},
		"no source":           {"network: {sources: [192.0.2.0/24]}", `network.sources: "192.0.2.0/24" is not an address`},
		"service nowhere":     {"network: {services: {db: {port: 1}}}", "network.services.db: needs either host"},
		"service twice":       {"network: {services: {db: {host: '127.0.0.1:1', box: a, port: 1}}}", "network.services.db: needs either host"},
		"service of a box":    {"network: {services: {db: {host: '10.200.0.9:80'}}}", "network.services.db: 10.200.0.9 is in the pool of the boxes; use box and port"},
		"service, no port":    {"network: {services: {db: {host: 127.0.0.1}}}", `network.services.db: "127.0.0.1" is not an address and a port`},
		"fleet, no name":      {"fleet: {endpoints: ['https://etcd:2379']}", "fleet.name: is not set"},
		"fleet, no etcd":      {"fleet: {name: f}", "fleet.endpoints: has 0 URLs of etcd"},
		"fleet, a path":       {"fleet: {name: a/b, endpoints: ['https://etcd:2379']}", `fleet.name: "a/b" is not a name of a fleet`},
		"fleet, in the clear": {"fleet: {name: f, endpoints: ['http://etcd:2379']}", `fleet.endpoints: "http://etcd:2379" is not encrypted`},
		"fleet, no port":      {"fleet: {name: f, endpoints: ['https://etcd']}", `fleet.endpoints: "https://etcd" is not a URL`},
		"fleet, a user":       {"fleet: {name: f, endpoints: ['https://a:b@etcd:2379']}", "is not a URL such as"},
		"fleet, half a cert":  {"fleet: {name: f, endpoints: ['https://etcd:2379'], tls: {cert_file: /c.pem}}", "fleet.tls: has one of cert_file and key_file"},
		"fleet, no TLS":       {"fleet: {name: f, endpoints: ['http://127.0.0.1:2379'], tls: {ca_file: /c.pem}}", "fleet.tls: has no effect on http://127.0.0.1:2379"},
		"fleet, a file":       {"fleet: {name: f, endpoints: ['https://etcd:2379'], tls: {ca_file: c.pem}}", `fleet.tls.ca_file: "c.pem" is not an absolute path`},
		"fleet, advertised":   {"fleet: {name: f, endpoints: ['https://etcd:2379'], advertise: 'h:1'}", `fleet.advertise: "h:1" is not an address of this host with a port`},
		"fleet, a name":       {"fleet: {name: f, endpoints: ['https://etcd:2379'], ingress: 'host:443'}", `fleet.ingress: "host:443" is not an address and port`},
		"fleet, a domain":     {"fleet: {name: f, endpoints: ['https://etcd:2379'], domain: example.org}", "fleet.domain: is not supported by this version"},
		"half a cluster":      {"network: {cluster: {services: [10.96.0.0/12]}}", "network.cluster: needs services, such as [10.96.0.0/12], and dns"},
		"a domain alone":      {"network: {cluster: {domain: k8s.example}}", "network.cluster: needs services"},
		"cluster unmasked":    {"network: {cluster: {dns: [10.96.0.10], services: [10.96.0.1/12]}}", `network.cluster.services: "10.96.0.1/12" is not a masked CIDR`},
		"cluster, too wide":   {"network: {cluster: {dns: [10.96.0.10], services: [8.0.0.0/5]}}", "network.cluster.services: 8.0.0.0/5 is too wide"},
		"cluster, nodes":      {"network: {cluster: {dns: [10.96.0.10], services: [10.0.0.0/11]}}", "network.cluster.services: 10.0.0.0/11 is too wide"},
		"cluster, everything": {"network: {cluster: {dns: [10.96.0.10], services: ['::/0']}}", "network.cluster.services: ::/0 is too wide"},
		"cluster, v6 nodes":   {"network: {cluster: {dns: [10.96.0.10], services: ['fd00:96::/48']}}", "network.cluster.services: fd00:96::/48 is too wide"},
		"cluster, v6 cloud":   {"network: {cluster: {dns: [10.96.0.10], services: ['fd00:ec2::/108']}}", "overlaps fd00:ec2::254/128"},
		"cluster, mapped":     {"network: {cluster: {dns: [10.96.0.10], services: ['::ffff:10.96.0.0/112']}}", "network.cluster.services: "},
		"cluster, host":       {"network: {cluster: {dns: [10.96.0.10], services: [127.0.0.0/8]}}", "network.cluster.services: 127.0.0.0/8 overlaps 127.0.0.0/8, which has no service addresses"},
		"cluster, metadata":   {"network: {cluster: {dns: [10.96.0.10], services: [169.254.169.254/32]}}", "overlaps 169.254.0.0/16"},
		"cluster, boxes":      {"network: {cluster: {dns: [10.96.0.10], services: [10.192.0.0/12]}}", "10.192.0.0/12 overlaps 10.200.0.0/16 in network.pool_v4"},
		"cluster, boxes' v6":  {"network: {cluster: {dns: [10.96.0.10], services: ['fd42:b0c5::/64']}}", "in network.pool_v6"},
		"cluster, exempt":     {"network: {protected_exempt: [10.0.0.0/8], cluster: {dns: [10.96.0.10], services: [10.96.0.0/12]}}", "in network.protected_exempt"},
		"cluster, translated": {"network: {cluster: {dns: [10.96.0.10], services: ['64:ff9b::a60:0/112']}}", "which has no service addresses"},
		"cluster, domain":     {"network: {cluster: {dns: [10.96.0.10], services: [10.96.0.0/12], domain: service.boxgate.internal}}", "network.cluster.domain: service.boxgate.internal has names of others"},
		"cluster, every name": {"network: {cluster: {dns: [10.96.0.10], services: [10.96.0.0/12], domain: local}}", "network.cluster.domain: local has names of others"},
		"box without port":    {"network: {services: {db: {box: a}}}", "network.services.db: needs the port of the box"},
		"service's name":      {"network: {services: {1db: {host: '127.0.0.1:1'}}}", "is no name of a service"},
		"service everywhere":  {"network: {services: {db: {host: '0.0.0.0:1'}}}", `"0.0.0.0:1" is no address of a server`},
		"gateway's service":   {"network: {services: {db: {host: '127.0.0.1:8600'}}}", "127.0.0.1:8600 is the gateway's own listener 127.0.0.1:8600"},
		"URLs as a service":   {"network: {services: {db: {host: '127.0.0.1:443'}}}", "127.0.0.1:443 is the gateway's own listener :443"},
		"key of a service":    {"network: {services: {db: {hots: '127.0.0.1:1'}}}", "hots"},
		"source twice":        {"network: {sources: [192.0.2.1, 192.0.2.1]}", "network.sources: 192.0.2.1 is given twice"},
		"source of a box":     {"network: {sources: [10.200.0.9]}", "network.sources: 10.200.0.9 is in network.pool_v4"},
		"loopback source":     {"network: {sources: ['::1']}", "network.sources: nothing can leave the host from"},
		"state of others":     {"state_dir: /var/lib/", "other programs"},
		"run dir of others":   {"launcher: {run_dir: /run}", "other programs"},
		"relative state":      {"state_dir: state", "not an absolute path"},
		"bad deny":            {"proxy: {deny: maybe}", `use alert or page`},
		"files without key":   {"ingress: {tls: {mode: files, cert: /c.pem}}", "needs both cert and key"},
		"bad listener":        {"admin: {listen: localhost}", "not host:port"},
		"no default image":    {"launcher: {images: {default: \"\"}}", `has no entry "default"`},
		"dollars, no prices":  {"limits: {model: {usd: 5, per: day}}", "limits.model.usd: needs prices: set prices; `gateway prices` prints an example"},
		"model, no period":    {"limits: {model_total: {tokens: 5}}", "limits.model_total: needs a period: per is hour, day, month or total"},
		"model, other period": {"quotas: {model: {tokens: 5, per: week}}", "quotas.model: has an unknown period"},
		"negative tokens":     {"limits: {model: {tokens: -5, per: day}}", "limits.model.tokens: -5 is out of range"},
		"meter, host":         {"meters: {'https://x.example': openai}", "meters: \"https://x.example\" is not of the form HOST"},
		"meter, port":         {"meters: {'x.example:443': openai}", "is not of the form HOST"},
		"meter, case":         {"meters: {X.example: openai}", "is not of the form HOST"},
		"meter, path":         {"meters: {x.example: openai, 'x.example/a?b': openai}", "the path must be plain"},
		"meter, no host":      {"meters: {x.example/v1: openai}", "meters: \"x.example/v1\" needs an entry for \"x.example\" as well"},
		"meter, vendor":       {"meters: {x.example: mistral}", "meters: \"x.example\": \"mistral\" is not one of"},
		"price, no output":    {"prices: {m: {input: 1}}", "prices.m: needs input and output"},
		"price, too high":     {"prices: {m: {input: 1, output: 100001}}", "prices.m: 100001 is out of range"},
		"price, negative":     {"prices: {m: {input: -1, output: 1}}", "is no amount of US dollars"},
		"price, name":         {"prices: {'a b': {input: 1, output: 1}}", `prices: "a b" must have letters`},
		"price, key":          {"prices: {m: {inputs: 1, output: 1}}", "inputs"},
		"no connections":      {"limits: {connections: 0}", "limits.connections: 0 is out of range; use 1 to 1000000"},
		"negative rate":       {"limits: {new_connections_per_second: -1}", "limits.new_connections_per_second: -1 is out"},
		"endless queries":     {"limits: {dns_queries_per_second: 1000001}", "limits.dns_queries_per_second: 1000001 is out"},
		"no interceptions":    {"limits: {interceptions: 0}", "limits.interceptions: 0 is out of range"},
		"endless ttl":         {"launcher: {max_ttl: 73h}", "launcher.max_ttl: 73h0m0s is out of range; use 1m to 72h"},
		"endless pause":       {"launcher: {max_paused: 8761h}", "launcher.max_paused: 8761h0m0s is out of range; use 1m to 8760h"},
		"hasty pause":         {"launcher: {max_paused: 10s}", "launcher.max_paused: 10s is out of range"},
		"hasty ttl":           {"launcher: {max_ttl: 10s}", "launcher.max_ttl: 10s is out of range"},
		"hasty peek":          {"limits: {peek_timeout: 1ms}", "limits.peek_timeout: 1ms is out of range; use 100ms to 5m"},
		"hasty API":           {"admin: {silence: 10ms}", "admin.silence: 10ms is out of range; use 1s to 5m"},
		"little memory":       {"limits: {memory: 1MiB}", "limits.memory: 1MiB is out of range; use 16MiB to 1TiB"},
		"small disk":          {"launcher: {disk: {small: 63MiB}}", "launcher.disk.small: 63MiB is out of range; use 64MiB to 16TiB"},
		"files' own disk":     {"launcher: {disk: {mode: loop, small: 64MiB}}", "launcher.disk.small: 64MiB is out of range; use 446MiB to 16TiB: in mode loop, launcher.disk.files (1000000) need space"},
		"few files' disk":     {"launcher: {disk: {mode: loop, files: 1000, medium: 64MiB}}", "launcher.disk.medium: 64MiB is out of range; use 65MiB to 16TiB"},
		"many files' disk":    {"launcher: {disk: {mode: loop, files: 1073741824}}", "launcher.disk.large: 40GiB is out of range; use 524352MiB to 16TiB"},
		"no gateway":          {"limits: {process_memory: 64MiB}", "limits.process_memory: 64MiB is out of range; use 128MiB to 16TiB"},
		"no size":             {"limits: {memory: much}", `"much" is not a size; use one such as 256MiB`},
		"unknown limit":       {"limits: {conections: 5}", `unknown key "limits.conections"; did you mean "limits.connections"?`},
		"no number":           {"limits: {connections: many}", "line 1: text is given where a whole number belongs"},
		"OIDC half set":       {"ingress: {oidc: {client_id: a}}", "ingress.oidc.issuer: is not set"},
		"OIDC in the clear":   {"ingress: {oidc: {issuer: 'http://accounts.example.org', client_id: a}}", "ingress.oidc.issuer"},
		"OIDC, no secret":     {"ingress: {oidc: {issuer: 'https://accounts.example.org', client_id: a, client_secret: s3cret}}", "ingress.oidc.client_secret: is not the name"},
		"OIDC elsewhere":      {"ingress: {oidc: {issuer: 'https://accounts.example.org', client_id: a, redirect_url: 'https://auth.example.org/x'}}", "ingress.oidc.redirect_url"},
		"admin.tls half set":  {"admin: {tls: {cert: /c.pem}}", "admin.tls: has one of cert and key; set both"},
		"admin.tls, no port":  {"admin: {listen: '', tls: {cert: /c.pem, key: /k.pem}}", "admin.tls: has no effect without admin.listen"},
		"a host with a port":  {"admin: {hosts: ['gate.example.org:8600']}", `admin.hosts: "gate.example.org:8600" is not a host name`},
		"admin.oidc half":     {"admin: {oidc: {groups: {a: admin}}}", "admin.oidc.issuer: is not set"},
		"admin.oidc clear":    {adminOIDC("issuer: 'http://accounts.example.org'"), "admin.oidc.issuer:"},
		"admin.oidc, secret":  {adminOIDC("client_secret: s3cret"), "admin.oidc.client_secret: is not the name"},
		"admin.oidc, role":    {adminOIDC("groups: {a: box-creator}"), `admin.oidc.groups: group "a" cannot have the role "box-creator"; use admin, approver, read-only, auditor`},
		"admin.oidc, nobody":  {adminOIDC("groups: {}"), "admin.oidc.groups: is empty"},
		"admin.oidc, claim":   {adminOIDC("groups_claim: ''"), "admin.oidc.groups_claim: is empty"},
		"admin.oidc, path":    {adminOIDC("redirect_url: 'https://gate.example.org/x'"), "admin.oidc.redirect_url: \"https://gate.example.org/x\" is not the address of the dashboard"},
		"admin.oidc, plain":   {adminOIDC("redirect_url: 'http://gate.example.org/ui/oidc/callback'"), "is neither https nor on loopback"},
		"admin.oidc, host":    {adminOIDC("redirect_url: 'https://other.example.org/ui/oidc/callback'"), "refuses the name other.example.org; add it to admin.hosts"},
		"export unencrypted":  {"log: {export: {otlp: {endpoint: 'http://192.0.2.1:4318'}}}", "log.export.otlp.endpoint: sends decisions unencrypted"},
		"export to nobody":    {"log: {export: {otlp: {endpoint: 'collector:4318'}}}", "log.export.otlp.endpoint: is not a URL"},
		"export, a query":     {"secrets: {k: {value: x}}\nlog: {export: {webhook: {url: 'https://h.example.org/?key=s3cret', secret: k}}}", "log.export.webhook.url: has a user, a query or a fragment"},
		"export, a user":      {"log: {export: {otlp: {endpoint: 'https://me:s3cret@h.example.org'}}}", "log.export.otlp.endpoint: has a user"},
		"export, some":        {"log: {export: {webhook: {events: some}}}", `log.export.webhook.events: "some" is not a valid value; use all or denied`},
		"export unsigned":     {"log: {export: {webhook: {url: 'https://h.example.org/'}}}", "log.export.webhook.secret: is not the name"},
		"export of headers":   {"log: {export: {otlp: {headers: {a: b}}}}", "log.export.otlp.endpoint: is not set"},
		"export, a literal":   {"log: {export: {otlp: {endpoint: 'https://h.example.org', headers: {Authorization: s3cret}}}}", "log.export.otlp.headers.Authorization: is not the name"},
		"export, no header":   {"log: {export: {otlp: {endpoint: 'https://h.example.org', headers: {'a b': k}}}}", "log.export.otlp.headers:"},
		"export, own header":  {"secrets: {k: {value: x}}\nlog: {export: {otlp: {endpoint: 'https://h.example.org', headers: {Webhook-ID: k}}}}", `"Webhook-ID" is set by the gateway`},
		"endless session":     {"ingress: {session_time: 721h}", "ingress.session_time: 721h0m0s is out of range"},
		"unknown names":       {"ingress: {names: deep}", `ingress.names: "deep" is unknown; use flat for {box}-{port}.{domain}`},
		"names of no file":    {"ingress: {names: nested, tls: {mode: files, cert: /c.pem, key: /k.pem}}", "ingress.names: a certificate from files cannot cover"},
		"balancers of all":    {"ingress: {proxy_protocol: [0.0.0.0/0]}", "ingress.proxy_protocol: \"0.0.0.0/0\" is not a masked CIDR of load balancers"},
		"balancer unmasked":   {"ingress: {proxy_protocol: [192.0.2.1/24]}", "ingress.proxy_protocol: \"192.0.2.1/24\" is not a masked CIDR of load balancers"},
		"a pattern passes":    {"ingress: {forward_fields: ['X-Auth-*', 'a b']}", "ingress.forward_fields: \"a b\" is not the name of a header field"},
		"own field passes":    {"ingress: {forward_fields: [X_Forwarded.For]}", "ingress.forward_fields: \"X_Forwarded.For\" cannot be handed on"},
		"hop's field passes":  {"ingress: {forward_fields: [Transfer-Encoding]}", "ingress.forward_fields: \"Transfer-Encoding\" cannot be handed on"},
		"proxy field passes":  {"ingress: {forward_fields: [Proxy_Authorization]}", "ingress.forward_fields: \"Proxy_Authorization\" cannot be handed on"},
		"field passes twice":  {"ingress: {forward_fields: [X-User, x-user]}", "ingress.forward_fields: \"x-user\" is listed twice"},
		"domain of nothing":   {"ingress: {domains: [{keys: [ci]}]}", "ingress.domains: suffix \"\" is not a domain such as example.org"},
		"domain by pattern":   {"ingress: {domains: [{suffix: '*.example.org'}]}", "ingress.domains: suffix \"*.example.org\" is not a domain such as example.org"},
		"domain in capitals":  {"ingress: {domains: [{suffix: Example.org}]}", "ingress.domains: suffix \"Example.org\" must be written as \"example.org\""},
		"domain twice":        {"ingress: {domains: [{suffix: example.org, keys: [a]}, {suffix: example.org, keys: [b]}]}", "ingress.domains: suffix \"example.org\" is listed twice"},
		"domain of no key":    {"ingress: {domains: [{suffix: example.org, keys: ['']}]}", "ingress.domains: suffix \"example.org\" has a key without an ID or name"},
		"hasty HSTS":          {"ingress: {hsts: {max_age: 500ms}}", "ingress.hsts.max_age: 500ms is out of range; use whole seconds"},
		"endless HSTS":        {"ingress: {hsts: {max_age: 17521h}}", "ingress.hsts.max_age: 17521h0m0s is out of range"},
		"HSTS of subdomains":  {"ingress: {hsts: {max_age: 0s, include_subdomains: true}}", "ingress.hsts.include_subdomains: has no effect without max_age"},
		"no visits":           {"ingress: {limits: {requests_per_second: 0}}", "ingress.limits.requests_per_second: 0 is out of range; use 1 to 1000000"},
		"no attempts":         {"ingress: {limits: {failed_credentials_per_minute: 0}}", "ingress.limits.failed_credentials_per_minute: 0 is out of range"},
		"large heads":         {"ingress: {limits: {header_bytes: 65KiB}}", "ingress.limits.header_bytes: 65KiB is out of range; use 4KiB to 64KiB"},
		"hasty heads":         {"ingress: {limits: {header_timeout: 0s}}", "ingress.limits.header_timeout: 0s is out of range; use 1s to 5m0s"},
		"idle for ever":       {"ingress: {limits: {idle_timeout: 2h}}", "ingress.limits.idle_timeout: 2h0m0s is out of range; use 1s to 1h0m0s"},
		"stalled bodies":      {"ingress: {limits: {body_timeout: -1s}}", "ingress.limits.body_timeout: -1s is out of range"},
		"hasty connects":      {"ingress: {limits: {connect_timeout: 1ms}}", "ingress.limits.connect_timeout: 1ms is out of range"},
		"endless responses":   {"ingress: {limits: {response_timeout: 25h}}", "ingress.limits.response_timeout: 25h0m0s is out of range"},
		"ACME for nobody":     {"ingress: {domain: p.example.org, tls: {mode: acme}}", "ingress.tls.acme.email: \"\" is not an e-mail address"},
		"ACME of localhost":   {"ingress: {tls: {mode: acme, acme: {email: a@b.c}}}", `ingress.domain: "preview.localhost" leads each machine to itself`},
		"ACME without TLS":    {"ingress: {domain: p.example.org, tls: {mode: acme, acme: {email: a@b.c, issuers: [{directory: \"http://ca/dir\"}]}}}", "is not an https URL"},
		"half an account":     {"ingress: {domain: p.example.org, tls: {mode: acme, acme: {email: a@b.c, issuers: [{directory: \"https://ca/dir\", eab: {key_id: x}}]}}}", "needs both key_id and hmac_file"},
		"unsigned updates":    {"ingress: {domain: p.example.org, tls: {mode: acme, acme: {email: a@b.c, dns01: {server: \"ns:53\", key_name: k}}}}", "ingress.tls.acme.dns01.key_file: is not set"},
		"weak updates":        {"ingress: {domain: p.example.org, tls: {mode: acme, acme: {email: a@b.c, dns01: {server: \"ns:53\", key_name: k, key_algorithm: hmac-md5, key_file: /k}}}}", `"hmac-md5" is not a valid value`},
		"not YAML":            {"a: [", "line 1"},
		"wrong type":          {"dns: {upstreams: {a: b}}", "line 1: a section of keys is given where a list belongs"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "boxgate.yaml")
			if err := os.WriteFile(file, []byte(c.yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(file, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
				t.Fatalf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestConfigReportsEveryMistakeAtOnce(t *testing.T) {
	_, err := Load("", []string{"BOXGATE_PROXY_DENY=x", "BOXGATE_STATE_DIR=y", "BOXGATE_LOG_LEVEL=z"})
	for _, want := range []string{"proxy.deny", "state_dir", "log.level"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

func TestEnvironmentWinsOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boxgate.yaml")
	if err := os.WriteFile(file, []byte("dns: {upstreams: [192.0.2.1:53]}\nlauncher: {idle_timeout: 5m}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(file, []string{
		"BOXGATE_DNS_UPSTREAMS=192.0.2.2:53, tls://192.0.2.3:853", "BOXGATE_INGRESS_REQUIRE_AUTH=true",
		"BOXGATE_LIMITS_CONNECTIONS=64", "BOXGATE_LIMITS_PEEK_TIMEOUT=3s", "BOXGATE_LIMITS_MEMORY=64MiB",
		"BOXGATE_LAUNCHER_IMAGES=default=debian,node=oci:/x", "OTHER=1", "BOXGATE_API_KEY=k",
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(cfg.DNS.Upstreams, " "); got != "192.0.2.2:53 tls://192.0.2.3:853" {
		t.Errorf("upstreams %q", got)
	}
	if !cfg.Ingress.RequireAuth || cfg.Launcher.Images["node"] != "oci:/x" || cfg.Launcher.IdleTimeout != 5*time.Minute {
		t.Errorf("not taken over: %+v", cfg)
	}
	want := DefaultLimits()
	want.Connections, want.PeekTimeout, want.Memory = 64, 3*time.Second, 64<<20
	if cfg.Limits != want {
		t.Errorf("limits %+v, want %+v", cfg.Limits, want)
	}
	if _, err = Load("", []string{"BOXGATE_LIMITS_CONNECTIONS=many"}); err == nil || !strings.Contains(err.Error(), "use a whole number") {
		t.Errorf("a limit that is no number gave %v", err)
	}
	_, err = Load("", []string{"BOXGATE_DNS_UPSTREAM=192.0.2.2:53"})
	if err == nil || !strings.Contains(err.Error(), "did you mean BOXGATE_DNS_UPSTREAMS") {
		t.Errorf("an unknown variable gave %v", err)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte("state_dir: /var/lib/boxgate\ndns: {upstreams: [a:53]}\n"))
	f.Add([]byte("network: {pool_v4: 10.0.0.0/8}\n---\n"))
	f.Add([]byte("secrets: {a: {file: /x, refresh: 1m}, b: {env: X}, c: {command: [x, y], timeout: 1s}, d: {value: v}}\n"))
	f.Add([]byte("secrets: {a: &x {value: v}, b: *x, c: [1], d: {value: *x}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg := Default()
		if parseStrict(data, &cfg) == nil {
			_ = cfg.validate()
		}
	})
}

// Each changed key is listed with both values, unless it is a secret.
func TestDiff(t *testing.T) {
	t.Parallel()
	read := func(text string) Config {
		t.Helper()
		cfg, err := Parse("boxgate.yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	old := read("drain: 5m\nsecrets: {one: {value: first-secret}}\n")
	if d, err := Diff(old, old); err != nil || len(d) != 0 {
		t.Errorf("of the same: %v %v", d, err)
	}
	d, err := Diff(old, read("drain: 10m\ndns: {upstreams: [192.0.2.53]}\nsecrets: {one: {value: second-secret}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, one := range d {
		keys = append(keys, one.Key)
		if strings.Contains(one.String(), "-secret") {
			t.Errorf("it shows a secret: %v", one)
		}
	}
	if want := []string{"dns.upstreams", "drain", "secrets.one.value"}; !slices.Equal(keys, want) {
		t.Errorf("%q, want %q", keys, want)
	}
	if got := d[1].String(); got != "drain: 5m0s -> 10m0s" {
		t.Error(got)
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Size{"0": 0, "1": 1, "64KiB": 64 << 10, "256 MiB": 256 << 20, "3GiB": 3 << 30, "1TiB": 1 << 40, "1536MiB": 1536 << 20} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: %d, %v", text, s, err)
		}
		var again Size
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%v is read as %v, %v", s, again, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1MB", "9999999999TiB", "0x10"} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is read as %d", text, s)
		}
	}
	if Size(math.MaxInt64).String() == "" {
		t.Error("no text")
	}
}

// TestExport checks the required settings, and the URL for logs.
func TestExport(t *testing.T) {
	t.Parallel()
	cfg, err := Parse("boxgate.yaml", []byte(`
secrets: {collector: {file: /etc/collector}, webhook: {file: /etc/webhook}}
log: {export: {otlp: {endpoint: 'https://10.0.0.1:4318', headers: {authorization: collector}}, webhook: {url: 'http://localhost:8080/hook', secret: webhook}}}
`), []string{"BOXGATE_LOG_EXPORT_OTLP_EVENTS=denied"})
	if err != nil {
		t.Fatal(err)
	}
	if e := cfg.Log.Export; !e.Enabled() || !e.OTLP.Denied() || !e.Webhook.Denied() || e.OTLP.Headers["authorization"] != "collector" {
		t.Errorf("%+v", e)
	}
	if e := Default().Log.Export; e.Enabled() || e.OTLP.Denied() || !e.Webhook.Denied() {
		t.Errorf("by default: %+v", e)
	}
	for endpoint, want := range map[string]string{
		"https://c:4318": "https://c:4318/v1/logs", "https://c/": "https://c/v1/logs", "https://c/otlp": "https://c/otlp/v1/logs",
		"https://c/v1/logs": "https://c/v1/logs", "https://c/v1/logs/": "https://c/v1/logs",
	} {
		if got := (OTLP{Endpoint: endpoint}).LogsURL(); got != want {
			t.Errorf("%s: %s", endpoint, got)
		}
	}
}

// TestMetricsByOTLP checks the settings of the export of metrics.
func TestMetricsByOTLP(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{endpoint: 'https://c/api/v1/otlp', headers: {authorization: collector}, interval: 10s}`: "",
		`{endpoint: 'http://c:4318'}`:                              "metrics.otlp.endpoint: sends metrics unencrypted",
		`{headers: {authorization: collector}}`:                    "metrics.otlp.endpoint: is not set",
		`{interval: 500ms}`:                                        "metrics.otlp.interval",
		`{protocol: grpc}`:                                         "metrics.otlp.protocol",
		`{endpoint: 'https://c', headers: {authorization: other}}`: "metrics.otlp.headers.authorization",
	} {
		cfg, err := Parse("boxgate.yaml", []byte("secrets: {collector: {file: /etc/collector}}\nmetrics: {otlp: "+text+"}\n"), nil)
		switch {
		case want == "" && (err != nil || cfg.Metrics.OTLP.URL() != "https://c/api/v1/otlp/v1/metrics"):
			t.Errorf("%s: %v, %s", text, err, cfg.Metrics.OTLP.URL())
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Root reads no configuration that another user owns or can change, not even through a link.
func TestAttackConfigurationOfAnotherUser(t *testing.T) {
	t.Parallel()
	nightly.Root(t)
	dir := t.TempDir()
	for _, c := range []struct {
		uid  int
		mode os.FileMode
		why  string
	}{
		{0, 0o600, ""}, {0, 0o644, ""}, {0, 0o640, ""}, {47110, 0o600, "belongs to user 47110"}, {47110, 0o444, "belongs to user 47110"},
		{0, 0o664, "chmod go-w"}, {0, 0o646, "chmod go-w"},
	} {
		path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
		_ = os.Remove(path)
		if err := os.WriteFile(path, []byte("state_dir: /var/lib/other\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, c.uid, c.uid); err != nil {
			t.Fatal(err)
		}
		_ = os.Symlink("file", link)
		for _, name := range []string{path, link} {
			cfg, err := Load(name, nil)
			if c.why == "" && (err != nil || cfg.StateDir != "/var/lib/other") {
				t.Errorf("%+v: %v", c, err)
			}
			if c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why) || cfg.StateDir == "/var/lib/other") {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
	if _, err := Load(os.DevNull, nil); err != nil {
		t.Error(err)
	}
}

// The address of the admin API for this host, and whether others could read what is sent there.
func TestAdminURL(t *testing.T) {
	t.Parallel()
	secured := AdminTLS{Cert: "/c", Key: "/k"}
	for _, c := range []struct {
		admin   Admin
		url     string
		private bool
	}{
		{Admin{Listen: "127.0.0.1:8600"}, "http://127.0.0.1:8600", true},
		{Admin{Listen: "[::1]:8600"}, "http://[::1]:8600", true},
		{Admin{Listen: "[::]:8600"}, "http://localhost:8600", false},
		{Admin{Listen: ":8600", TLS: secured}, "https://localhost:8600", true},
		{Admin{Listen: "192.0.2.1:8600"}, "http://192.0.2.1:8600", false},
		{Admin{}, "", false},
	} {
		if c.admin.URL() != c.url || c.admin.IsPrivate() != c.private {
			t.Errorf("%+v: %s, %v", c.admin, c.admin.URL(), c.admin.IsPrivate())
		}
	}
	good := adminOIDC("scopes: [email]")
	if _, err := Parse("x", []byte(good), nil); err != nil {
		t.Errorf("%s: %v", good, err)
	}
}
