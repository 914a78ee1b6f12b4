// Package repotest tests the rules of the repository: the allowed imports, the package comments, and that documents
// name existing things.
package repotest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// allowed lists, for each package, the packages of this module that it may import besides those below itself. Imports
// point towards policy. audit is the only other package that all may import, for audit.Event. Siblings never import
// each other. A package that may import policy may also import policy/name, policy/content, policy/document and policy/match, whose
// types are part of its API. The layers of the firewall, the proxy, the admin API, the launcher, the store, the
// self-test and the command line are listed one by one: a layer imports only lower layers.
var allowed = importTable(`
policy: rule rule/header rule/kinds
policy/name:
policy/content:
policy/document: policy/name
policy/match: policy/name policy/content policy/document
policy/authority: policy
policy/dialect: policy policy/policytest rule rule/forward rule/header rule/kinds rule/upstream
policy/policytest: policy policy/document
policy/learn: policy policy/dialect policy/document policy/match policy/preset
rule: llm policy/name policy/document policy/match
rule/kinds: policy policy/document rule rule/clientcert rule/forward rule/header rule/legacytls rule/lenient rule/meter rule/placeholder rule/postgres rule/query rule/response rule/sign rule/ssh rule/upstream
rule/clientcert: policy/name policy/document policy rule
rule/forward: policy/name policy/document policy/match policy rule
rule/header: policy/name policy/document policy/match policy rule
rule/legacytls: policy/document policy rule certs proxy proxy/proxytest
rule/lenient: policy policy/document proxy/proxytest audit rule
rule/meter: llm policy/name policy/document policy rule
rule/placeholder: policy/name policy/document policy/match relay/h1 proxy/scrub rule
rule/postgres: policy/name policy/document policy rule
rule/query: policy proxy/proxytest rule
rule/response: policy/name policy/document policy proxy/proxytest rule
rule/sign: policy proxy proxy/proxytest proxy/scrub rule
rule/sign/signtest:
rule/ssh: policy/name policy/document policy/match policy rule
rule/upstream: policy/name policy/document policy rule
llm: policy/name
llm/wire: llm
llm/budget: llm policy store
observe: policy audit store/pages
observe/lint: policy audit observe
observe/replay: policy audit observe
boundary: policy
boundary/endpoint: policy audit api api/problem api/strict boundary
boundary/mcp: boundary
agents: policy rule/header api api/problem internal/lazyregexp llm rule/meter
audit: policy internal/fault
firewall: policy audit internal/fault
firewall/flow: policy firewall/namespace firewall/network
firewall/dhcp:
firewall/foreign: firewall/namespace firewall/network
firewall/link: policy internal/fault firewall/namespace firewall/network
firewall/namespace:
firewall/network: policy
firewall/nft: policy internal/fault firewall/namespace firewall/network
firewall/report: policy audit firewall/flow firewall/namespace firewall/network firewall/nft
firewall/route: firewall/namespace firewall/network
firewall/watch: policy firewall/link firewall/namespace firewall/network firewall/nft firewall/route
dns: policy audit internal/fault internal/lru internal/memory internal/ratelimit boundary
dns/outbound:
proxy: llm policy rule rule/postgres rule/ssh audit internal/fault internal/handshake internal/memory internal/ratelimit relay/h1 relay/h2 relay/h2/upstream internal/buffers internal/socket relay boundary
proxy/recovery: policy
proxy/exchange: llm llm/wire policy rule audit internal/fault internal/handshake relay/h1 proxy/recovery proxy/har proxy/header proxy/live proxy/origin proxy/problem proxy/route proxy/scrub internal/socket proxy/tunnel proxy/usage internal/memory rule/placeholder boundary
proxy/har: policy audit internal/memory proxy/scrub proxy/proxytest relay/h1
proxy/header: policy rule relay/h1 proxy/scrub relay
proxy/http1: policy audit internal/memory internal/buffers proxy/recovery proxy/exchange relay/h1 proxy/har proxy/header proxy/live proxy/origin proxy/problem proxy/scrub internal/socket proxy/tunnel relay rule rule/placeholder boundary
proxy/http2: policy audit internal/memory internal/buffers proxy/recovery proxy/exchange relay/h1 relay/h2 relay/h2/downstream relay/h2/upstream proxy/header proxy/live proxy/origin proxy/problem proxy/scrub internal/socket proxy/tunnel relay rule rule/placeholder boundary proxy/usage
proxy/live: policy proxy/route internal/socket proxy/usage
proxy/offer:
proxy/origin: policy rule internal/fault internal/memory relay/h1 relay/h2/upstream proxy/offer proxy/problem proxy/route internal/socket proxy/proxydial proxy/usage relay relay/pool
proxy/peek: policy internal/buffers internal/memory
proxy/peek/peektest:
proxy/postgres: policy rule/postgres internal/socket proxy/problem proxy/scrub
proxy/proxytest: policy audit internal/nightly proxy proxy/origin proxy/route rule/placeholder
proxy/problem: policy internal/handshake relay/h1 relay/h2 proxy/scrub relay
proxy/route: policy
proxy/scrub: policy
proxy/ssh: policy rule/ssh internal/memory internal/sshflow proxy/recovery
proxy/proxydial: policy internal/socket
proxy/tunnel: policy internal/buffers proxy/recovery relay/h1 internal/socket relay
proxy/usage: policy audit internal/memory internal/ratelimit internal/socket proxy/har proxy/scrub
relay: internal/buffers relay/h1 relay/h2 relay/h2/downstream internal/handshake internal/socket
certs: policy audit fleet fleet/certstore fleet/etcdtest fleet/member internal/fault internal/lru
ingress/balancer:
ingress/h2c: relay/h1 relay/h2/upstream relay/pool
remote: policy internal/acceptor certs internal/required internal/socket proxy/recovery
sshd: policy internal/acceptor internal/required internal/sshflow proxy/recovery
fleet: fleet/etcdtest
fleet/certstore: policy fleet fleet/etcdtest fleet/pki internal/required
fleet/directory: fleet fleet/etcdtest fleet/member
fleet/etcdtest: fleet internal/testnet
fleet/member: fleet fleet/etcdtest internal/nightly internal/required
fleet/sharedkey: policy fleet fleet/etcdtest fleet/pki fleet/roster fleet/watch internal/nightly internal/required
fleet/node: policy fleet fleet/certstore fleet/directory fleet/etcdtest fleet/member fleet/pki fleet/roster fleet/shared fleet/sharedkey fleet/watch internal/fault internal/required
fleet/pki: policy
fleet/roster: policy fleet fleet/directory fleet/etcdtest fleet/pki
fleet/shared: fleet fleet/etcdtest fleet/watch internal/nightly
fleet/watch: fleet fleet/etcdtest internal/nightly internal/required
kube: policy policy/dialect policy/document internal/nightly internal/required internal/lazyregexp
ingress: policy audit internal/openid internal/peernet internal/handshake internal/buffers relay/h1 relay/h2 relay/h2/downstream internal/memory internal/socket relay relay/pool
launcher: policy audit internal/fault internal/lazyregexp
launcher/boxfs: policy launcher/boxfs/sftpserver launcher/boxfs/worker
launcher/boxfs/sftpserver: launcher/boxfs/worker
launcher/boxfs/worker: launcher/files launcher/rootfs
launcher/cgroup: launcher/oci
launcher/container: launcher/namespace
launcher/enter: launcher/container launcher/launchertest launcher/process
launcher/disk:
launcher/files:
launcher/rootfs: internal/lazyregexp launcher/files launcher/namespace launcher/launchertest
launcher/image/agents:
launcher/image: launcher/disk launcher/files launcher/launchertest
launcher/launchertest:
launcher/freezer: policy
launcher/namespace: launcher/files
launcher/oci:
launcher/overlay:
launcher/process: policy launcher/oci
launcher/snapshot: launcher/files launcher/image launcher/namespace internal/lazyregexp
launcher/terminal:
launcher/trash: launcher/files
api: policy audit quota observe/replay policy/authority llm
api/access: policy rule api api/problem
api/apitest: policy audit api api/access api/files api/problem api/rest api/schedules api/strict quota observe observe/replay policy/authority doctor proxy/har llm
api/approvals: policy api api/apitest api/change api/history api/problem api/rest api/strict
api/capture: policy api quota
api/change: policy rule api api/rest policy/policytest
api/boxes: policy rule agents api api/access api/change api/history api/problem api/rest api/spec api/strict internal/lazyregexp llm api/elsewhere
api/egress: policy audit api api/apitest api/problem api/rest api/stream api/strict observe policy/learn
api/har: policy audit api api/apitest api/problem api/rest api/stream api/strict internal/buildinfo internal/memory proxy/har quota
api/elsewhere: api api/access api/problem
api/e2b: policy policy/dialect api api/apitest api/boxes api/lifecycle api/problem api/rest api/rules api/snapshots api/strict quota api/access
api/e2b/token: policy api
api/e2b/envd: policy api api/access api/apitest api/e2b/token api/files api/history api/problem api/process api/rest api/session api/spec api/strict internal/required quota
api/process: policy api api/access api/problem api/rest api/session api/spec api/stream api/strict quota
api/doctor: policy api api/apitest api/problem api/rest api/strict doctor
api/exec: policy audit api api/access api/capture api/history api/problem api/rest api/spec api/stream api/strict
api/files: policy api api/apitest api/capture api/problem api/rest api/spec api/stream api/strict
api/gateway: policy api internal/buildinfo api/problem api/rest api/strict
api/git: policy api api/capture api/history api/problem api/rest api/spec api/strict
api/harness: policy agents api api/access api/history api/problem api/rest api/schema api/stream api/strict quota llm
api/history: policy api api/problem api/stream quota llm
api/keysecrets: policy api api/access api/apitest api/problem api/rest api/spec api/strict
api/keys: policy api api/problem api/rest api/strict quota internal/lazyregexp llm api/spec
api/lifecycle: policy api api/history api/problem api/rest api/spec api/strict
api/members: api api/problem api/rest
api/openapi: api api/problem api/rest api/strict
api/problem: policy api quota
api/rest: policy api api/problem api/strict quota internal/lazyregexp llm
api/rules: policy rule rule/header rule/kinds api api/access api/apitest api/change api/history api/problem api/rest api/spec api/strict
api/server: policy llm rule/header audit api api/e2b api/e2b/envd api/e2b/token api/process api/access api/apitest api/boxes api/capture api/doctor api/egress api/exec api/files api/gateway api/git api/har api/harness api/history api/keys api/keysecrets api/lifecycle api/members api/openapi api/problem api/rest api/rules api/schedules api/session api/session/client api/settings api/snapshots api/stream api/strict api/trail api/urls quota internal/required api/report api/approvals api/elsewhere
api/schedules: policy api api/apitest api/history api/problem api/rest api/spec api/strict
api/schema:
api/session: policy api api/access api/history api/problem api/rest api/spec api/strict quota
api/session/client: api
api/settings: policy agents api api/access api/apitest api/change api/history api/problem api/rest api/spec api/strict llm rule/header
api/snapshots: policy api api/history api/problem api/rest api/strict api/elsewhere
api/spec: policy policy/dialect rule rule/kinds api api/problem observe/replay policy/authority internal/lazyregexp llm
api/stream:
api/strict: policy api/problem quota
api/trail: policy audit api api/problem api/rest api/stream
api/report: policy audit quota api api/problem api/rest internal/buildinfo
api/urls: policy api api/apitest api/history api/problem api/rest api/strict internal/lazyregexp
quota:
store: llm policy rule/header audit
store/document: store/layout
store/history: store/document store/layout
store/keyring: store/layout store/private
store/layout:
store/pages:
store/private:
secrets: policy audit internal/fault
secrets/assertion: policy
secrets/aws: policy rule/sign secrets/remote internal/lazyregexp
secrets/github: policy secrets/assertion secrets/remote internal/lazyregexp
secrets/identity: policy secrets/assertion
secrets/manager: policy secrets/remote internal/lazyregexp
secrets/oauth: policy internal/fault secrets/assertion secrets/remote internal/lazyregexp
secrets/remote: policy audit
doctor: policy doctor/cause doctor/probe selftest/probe
doctor/cause: proxy/offer
doctor/probe: doctor/cause proxy/offer proxy/problem
selftest: policy audit
selftest/packet:
selftest/probe: selftest/packet
selftest/watch: selftest/packet
internal/testnet:
internal/testnet/models:
internal/acceptor: internal/socket
internal/mutants:
internal/nightly:
internal/testgate:
internal/silence:
internal/release: cmd/gateway launcher/oci
internal/recording: internal/lab/demo
internal/repotest: internal/mutants internal/structure launcher/oci
internal/structure:
conformance:
internal/fault:
internal/buffers:
relay/h1: internal/memory
relay/pool:
relay/h2: internal/memory internal/buffers relay/h1
relay/h2/downstream: internal/memory internal/buffers relay/h2 internal/socket
relay/h2/upstream: internal/buffers relay/h1 relay/h2 internal/socket
internal/handshake:
internal/openid: policy
internal/required:
internal/lru:
internal/peernet:
internal/lazyregexp:
internal/memory:
internal/ratelimit:
internal/socket:
internal/sshflow: internal/memory
bench: api internal/testnet
bench/profiled: cmd/gateway
dist:
dist/kubernetes: config
internal/buildinfo:
config: policy policy/dialect rule rule/upstream launcher/image/agents launcher/oci secrets quota internal/lazyregexp llm llm/budget
preflight: config launcher/enter launcher/oci
host/netns: firewall/namespace
host/nslock: host/netns
host/sandboxwatch: policy api host/sandboxns
host/sshaccess: policy proxy/recovery quota api api/server api/session internal/required internal/sshflow sshd
host/sandboxns: policy api firewall/namespace
host/procwatch: policy host/sandboxns
host/idle:
host/box: policy agents api api/history audit certs config dns firewall host/change host/enforce host/enforce/enforcetest host/lease host/sandboxwatch host/sandboxns host/keys host/meter host/boxdial host/rules host/schedule host/snapshots host/state host/usage ingress internal/fault internal/required launcher quota remote selftest store store/history llm
host/har: policy api host/state proxy/har
host/doctor: policy rule/legacytls rule/lenient api config doctor doctor/cause firewall/namespace host/box host/change host/rules host/state host/usage internal/required
host/change: policy api internal/fault store store/history
host/enforce: policy firewall internal/fault
host/enforce/enforcetest: policy firewall
host/webhook: policy internal/socket
host/peerapi: policy fleet fleet/etcdtest fleet/directory fleet/node fleet/pki fleet/roster api api/access api/problem api/rest audit internal/fault internal/peernet fleet/roster api/elsewhere api/strict quota
host/handover: policy
host/handover/handovertest: policy host/handover
host/approvals: policy api api/change audit boundary host/change host/state internal/fault internal/ratelimit internal/required store
host/authlimit: internal/socket internal/peernet quota
host/keysecrets: policy api host/change internal/fault internal/required proxy proxy/exchange quota store
host/keys: fleet fleet/shared policy api api/e2b/token host/change host/snapshots host/state internal/required launcher quota secrets secrets/identity store llm
host/lease: internal/fault store
host/listen: config dns firewall firewall/network host/netns host/handover host/nslock host/systemd proxy selftest
host/meter: policy store
host/models: llm llm/budget policy api api/history config host/state internal/required store
host/boxdial: policy launcher/namespace
host/peers: policy fleet/pki ingress ingress/balancer internal/required internal/socket proxy/tunnel
host/records: api audit config internal/buildinfo quota store observe policy
host/rules: fleet fleet/shared policy policy/document rule/header api api/change api/rest audit boundary config firewall host/netns host/change host/enforce host/enforce/enforcetest host/handover host/handover/handovertest host/lease host/meter host/state internal/fault internal/required policy/dialect store observe/replay policy/authority observe store/history quota
host/schedule: policy api api/history api/problem api/schedules host/change host/webhook host/keys host/state internal/fault internal/required proxy quota store agents api/harness
host/services: policy config firewall/namespace host/boxdial proxy/route
host/share: config host/authlimit internal/memory preflight proxy quota
host/snapshots: policy policy/name host/bucket host/bucket/buckettest internal/fault launcher store
host/bucket: policy/name host/bucket/buckettest internal/required launcher store
host/bucket/buckettest:
host/state: policy agents api host/idle host/sandboxns launcher launcher/oci store llm
host/systemd:
host/urls: policy api config host/change host/handover host/handover/handovertest host/keys host/boxdial host/state ingress internal/required quota store
host/uninstall: policy config firewall host/nslock launcher store observe
host/usage: policy api api/files api/history audit firewall host/change host/handover host/meter host/boxdial host/state host/procwatch ingress internal/required launcher launcher/boxfs launcher/boxfs/worker store
host: fleet fleet/directory fleet/node fleet/shared fleet/pki ui ui/session policy policy/dialect api api/access api/e2b api/e2b/token api/history api/members api/server api/stream audit certs config dns firewall host/nslock ingress internal/acceptor internal/buildinfo internal/fault internal/memory internal/required internal/socket launcher llm preflight proxy quota secrets secrets/identity store store/history observe boundary boundary/endpoint internal/openid remote sshd kube api/harness
ui: policy audit api api/access api/apitest api/elsewhere api/server api/stream policy/authority ui/preview api/spec observe/replay api/boxes api/problem
ui/session: policy quota api api/access internal/openid internal/peernet
ui/pages: policy policy/authority rule/kinds audit quota api api/rest api/spec ui/preview
ui/preview: policy audit api api/spec observe observe/lint observe/replay policy/authority policy/learn
internal/lab: config api launcher internal/testnet
internal/lab/demo: audit config internal/lab internal/testnet
enclosure: enclosure/inside
enclosure/inside: enclosure/inside/connect
enclosure/inside/connect:
cmd/gateway: host/peerapi fleet fleet/node fleet/pki fleet/roster policy policy/dialect rule rule/kinds audit config preflight enclosure enclosure/inside host host/netns host/sandboxns firewall certs launcher launcher/oci launcher/files api api/session/client store secrets selftest internal/buildinfo quota host/handover host/share host/systemd host/uninstall host/keys host/box host/listen api/apitest api/server observe boundary boundary/mcp observe/replay observe/lint policy/authority api/spec policy/learn doctor doctor/probe host/doctor llm
cmd/gateway-demo: cmd/gateway/command/cli internal/buildinfo internal/lab/demo
cmd/gateway/command/cli: policy config api
cmd/gateway/command/cni: policy config api cmd/gateway/command/cli host/sandboxns firewall/link firewall/network
cmd/gateway/command/copying:
cmd/gateway/command/terminal: api
e2e/harness: host/bucket/buckettest secrets policy audit config certs launcher api cmd/gateway/command/cli internal/lab internal/testnet fleet/etcdtest
e2e/harness/npm: internal/lab internal/testnet
e2e/harness/gateway: e2e/harness cmd/gateway internal/fault
e2e: fleet/etcdtest host/bucket/buckettest ingress/balancer policy audit config host/nslock certs launcher launcher/launchertest launcher/oci api api/session/client store secrets proxy/scrub cmd/gateway/command/cli internal/lab internal/testnet internal/testnet/models e2e/harness rule/sign/signtest quota observe observe/replay api/spec policy/learn doctor store/history ui/preview llm fleet fleet/node fleet/pki fleet/roster
`)

// importTable parses lines of a package, a colon and the packages that it may import.
func importTable(text string) map[string][]string {
	table := map[string][]string{}
	for line := range strings.Lines(text) {
		pkg, list, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		may := strings.Fields(list)
		if slices.Contains(may, "policy") {
			may = append(may, "policy/name", "policy/content", "policy/document", "policy/match")
		}
		table[pkg] = may
	}
	return table
}

// source is one parsed Go file of the repository.
type source struct {
	path string // relative to the root, with slashes
	pkg  string // directory of the package in the table
	file *ast.File
}

// atRoot makes the module's root the working directory of a test. Each test must call it: `go test` repeats a test only
// if files change that the test itself has opened.
func atRoot(t *testing.T) {
	t.Helper()
	t.Chdir("../..")
}

// sources returns the Go files of the repository, which are parsed once.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var parsed = sync.OnceValues(parse)

func parse() ([]source, error) {
	var out []source
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, source{path: filepath.ToSlash(path), pkg: owner(filepath.ToSlash(filepath.Dir(path))), file: f})
		return nil
	})
	return out, err
}

// owner returns the package of the table that dir belongs to: dir itself, or the nearest parent.
func owner(dir string) string {
	for d := dir; d != "."; d = filepath.ToSlash(filepath.Dir(d)) {
		if _, ok := allowed[d]; ok {
			return d
		}
	}
	return dir
}

func TestImportDirection(t *testing.T) {
	atRoot(t)
	for _, s := range sources(t) {
		may, known := allowed[s.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the table of internal/repotest/repo_test.go; say there what it may import", s.path, s.pkg)
			continue
		}
		test := strings.HasSuffix(s.path, "_test.go")
		from := s.pkg
		if strings.HasPrefix(from, "proxy/") && strings.HasSuffix(s.file.Name.Name, "_test") { // tests a whole proxy with proxytest
			from, may = "proxy", allowed["proxy"]
		}
		for _, imp := range s.file.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			target, ours := strings.CutPrefix(path, "boxgate/")
			if !ours {
				continue
			}
			target = owner(target)
			if target == from || strings.HasPrefix(target, from+"/") || slices.Contains(may, target) || test && (target == "internal/testnet" || target == "internal/nightly" || target == "conformance") {
				continue
			}
			t.Errorf("%s imports boxgate/%s; %s may import only %v", s.path, target, from, may)
		}
	}
}

// TestOnlyTestsInjectFaults: only tests and the gateway of the harness, which is for tests only, call the injection
// functions of package fault.
func TestOnlyTestsInjectFaults(t *testing.T) {
	atRoot(t)
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") || s.pkg == "e2e/harness/gateway" {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Inject" || sel.Sel.Name == "LimitIntervals") {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "fault" {
					t.Errorf("%s injects faults; only a test may", s.path)
				}
			}
			return true
		})
	}
}

func TestPackagesAreDocumentedAndNamed(t *testing.T) {
	atRoot(t)
	documented := map[string]bool{}
	for _, s := range sources(t) {
		dir := filepath.ToSlash(filepath.Dir(s.path))
		if base := filepath.Base(dir); base == "util" || base == "utils" || base == "common" || base == "helpers" {
			t.Errorf("%s: a package is named after what it is for, not %q", s.path, base)
		}
		if strings.HasSuffix(s.path, "_test.go") && dir != "internal/repotest" {
			continue
		}
		documented[dir] = documented[dir] || s.file.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", dir)
		}
	}
}

// TestDocumentsNameExistingFiles: every path in backquotes that looks like a Go file of this repository exists.
func TestDocumentsNameExistingFiles(t *testing.T) {
	atRoot(t)
	for _, doc := range []string{"README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/commands.md", "docs/configuration.md", "docs/limits.md", "docs/running.md", "docs/tour.md", "docs/conformance.md", "docs/mutants.md", "docs/security.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for i, quoted := range strings.Split(string(text), "`") {
			if i%2 == 0 || !strings.HasSuffix(quoted, ".go") || strings.ContainsAny(quoted, " *") {
				continue
			}
			if _, err := os.Stat(quoted); err != nil {
				t.Errorf("%s names `%s`, which does not exist", doc, quoted)
			}
		}
	}
}

// TestScriptsNameExistingPackages: scripts name existing packages.
func TestScriptsNameExistingPackages(t *testing.T) {
	atRoot(t)
	scripts, err := filepath.Glob("dist/*.sh")
	if err != nil || len(scripts) == 0 {
		t.Fatal(scripts, err)
	}
	for _, path := range append(scripts, "Makefile", ".ci/run") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(string(text)) {
			if dir, ok := strings.CutSuffix(word, "/..."); ok && dir != "." {
				if _, err := os.Stat(dir); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	}
}

// TestOnePlaceCompilesPolicies: the gateway compiles a box's policy in one place, from all its inputs. A second place
// could omit an input and compile another policy.
func TestOnePlaceCompilesPolicies(t *testing.T) {
	atRoot(t)
	for name, want := range map[string]int{"Compile": 1, "WithTokens": 1, "MergeHeaders": 1} {
		var callers []string
		for _, s := range sources(t) {
			if s.pkg != "host" && !strings.HasPrefix(s.pkg, "host/") || strings.HasSuffix(s.path, "_test.go") {
				continue
			}
			ast.Inspect(s.file, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
					if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "policy" {
						callers = append(callers, s.path)
					}
				}
				return true
			})
		}
		if len(callers) != want {
			t.Errorf("policy.%s is used at %v; only inputs.compile may compile, which has all that a policy is compiled from", name, callers)
		}
	}
}

// TestNoAccountsBelowAConnection: socket.Reset and socket.Abort close the TCP connection returned by NetConn. A type
// with both NetConn and its own Close might do its accounting in Close, which a reset bypasses: the slot of a reset
// connection would never be released. The owner of a connection must do the accounting instead.
func TestNoAccountsBelowAConnection(t *testing.T) {
	atRoot(t)
	methods := map[string]map[string]bool{} // by package and type
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") || strings.HasPrefix(s.path, "internal/testnet/") { // testnet resets no connections
			continue
		}
		for _, d := range s.file.Decls {
			for name := range promoteNetConn(d) {
				at := filepath.ToSlash(filepath.Dir(s.path)) + "." + name
				if methods[at] == nil {
					methods[at] = map[string]bool{}
				}
				methods[at]["NetConn"] = true
			}
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || len(f.Recv.List) != 1 {
				continue
			}
			of := f.Recv.List[0].Type
			if p, ok := of.(*ast.StarExpr); ok {
				of = p.X
			}
			name, ok := of.(*ast.Ident)
			if !ok {
				continue
			}
			at := filepath.ToSlash(filepath.Dir(s.path)) + "." + name.Name
			if methods[at] == nil {
				methods[at] = map[string]bool{}
			}
			methods[at][f.Name.Name] = true
		}
	}
	wrappers := 0
	for at, has := range methods {
		if !has["NetConn"] {
			continue
		}
		wrappers++
		if has["Close"] {
			t.Errorf("%s has NetConn and Close: a reset below it would go around Close", at)
		}
	}
	if wrappers < 3 {
		t.Errorf("%d types with NetConn were found", wrappers)
	}
}

// promoteNetConn returns the structs of a declaration that have NetConn through an embedded connection.
func promoteNetConn(d ast.Decl) map[string]bool {
	found := map[string]bool{}
	ast.Inspect(d, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		of, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range of.Fields.List {
			switch types.ExprString(field.Type) {
			case "*tls.Conn", "*socket.Direct", "*Direct":
				if len(field.Names) == 0 {
					found[spec.Name.Name] = true
				}
			}
		}
		return true
	})
	return found
}
