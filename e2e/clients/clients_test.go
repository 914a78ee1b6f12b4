package clients

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/lab"
	"boxgate/internal/nightly"
	"boxgate/launcher"
	"boxgate/policy"
)

// client is a popular program and the way to run it, without options for certificates.
type client struct {
	name string
	// run is a shell line that prints "welcome". PAGE is replaced by the address of the client's page.
	run string
	// path is a path that the client requests from the shop, besides its own page.
	path string
	// variables marks a client that uses none of the system's stores and needs the variables.
	variables bool
	// rootOnly marks a client that only root uses.
	rootOnly bool
	// once marks a client that is slow, or similar to another: one setting is enough.
	once bool
}

const (
	ask = `printf 'GET /seen/NAME HTTP/1.1\r\nHost: ` + shopHost + `\r\nConnection: close\r\n\r\n'`
	// nodejs is Node.js with its built-in roots, also where its default is the system's store.
	nodejs = "node --use-bundled-ca "
	java   = "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp /workspace/home Fetch "
	// pipWheel is Debian's pip, which uses the system's store. Below pypi it is the official release.
	pipWheel = "python3 $(echo /usr/share/python-wheels/pip-*.whl)/pip"
	pypi     = "/workspace/home/pypi"
	pipArgs  = " install -q --no-cache-dir --disable-pip-version-check --index-url https://" + shopHost + "/simple --target lib tiny && PYTHONPATH=lib python3 -c 'import tiny; print(tiny.greeting)'"
)

// clients are the programs in the image of the client tests.
var clients = []client{
	{name: "curl", run: "curl -sS PAGE"},
	{name: "curl-http1", run: "curl -sS --http1.1 PAGE", once: true},
	{name: "wget", run: "wget -nv -O- PAGE"},
	{name: "git", run: "git clone -q https://" + shopHost + "/git/tiny.git && git -C tiny log --format=%s", path: "/git/tiny.git/git-upload-pack"},
	{name: "python-urllib", run: `python3 -c 'import urllib.request as u; print(u.urlopen("PAGE").read().decode())'`},
	{name: "python-requests-debian", run: `python3 -c 'import requests; print(requests.get("PAGE").text)'`},
	{name: "python-requests-pypi", run: "PYTHONPATH=" + pypi + ` python3 -c 'from pip._vendor import requests; print(requests.get("PAGE").text)'`, variables: true},
	{name: "pip-debian", run: pipWheel + pipArgs, path: "/files/tiny-1.0-py3-none-any.whl", once: true},
	{name: "pip-pypi", run: "PYTHONPATH=" + pypi + " python3 -m pip" + pipArgs, path: "/files/tiny-1.0-py3-none-any.whl", variables: true, once: true},
	{name: "node-https", run: nodejs + `-e 'require("https").get("PAGE", r => r.pipe(process.stdout))'`, variables: true},
	{name: "node-http2", run: nodejs + `-e 'const c = require("http2").connect("https://` + shopHost + `"); c.request({":path": "/seen/NAME"}).on("end", () => c.close()).pipe(process.stdout)'`, variables: true, once: true},
	{name: "node-system", run: `node --use-system-ca -e 'fetch("PAGE").then(r => r.text()).then(console.log)'`},
	{name: "node-fetch", run: nodejs + `-e 'fetch("PAGE").then(r => r.text()).then(console.log)'`, variables: true},
	{name: "node-undici", run: nodejs + `-e 'require("` + sdk + `undici").request("PAGE").then(r => r.body.text()).then(console.log)'`, variables: true},
	{name: "npm", run: "NODE_OPTIONS=--use-bundled-ca npm install --silent --no-audit --no-fund --no-update-notifier --registry https://" + shopHost + `/npm/ tiny && node -p 'require("tiny")'`, path: "/npm/tiny/-/tiny-1.0.0.tgz", variables: true, once: true},
	{name: "go", run: "/workspace/home/fetch PAGE"},
	{name: "openssl", run: ask + " | openssl s_client -quiet -verify_return_error -verify_hostname " + shopHost + " -servername " + shopHost + " -connect " + shopHost + ":443"},
	{name: "gnutls", run: "mkfifo in && { " + ask + `; cat in; } | gnutls-cli ` + shopHost + ` | { sed '/^welcome/q'; : >in; }`},
	{name: "java-httpclient", run: java + "HttpClient PAGE"},
	{name: "java-urlconnection", run: java + "HttpsURLConnection PAGE", once: true},
	{name: "cargo", run: `mkdir src .cargo && : >src/lib.rs && printf '[registries.shop]\nindex = "sparse+https://` + shopHost + `/crates/"\n' >.cargo/config.toml &&
		printf '[package]\nname = "mine"\nversion = "0.0.1"\nedition = "2021"\n[dependencies]\ntiny = { version = "1", registry = "shop" }\n' >Cargo.toml &&
		CARGO_HOME=$PWD/home RUSTC_BOOTSTRAP=1 cargo -q -Z sparse-registry fetch && find home -name tiny-1.0.0.crate | grep -q . && echo welcome`, path: "/crates/dl/tiny/1.0.0/download", once: true},
	{name: "apt", run: "exec 9>/tmp/apt.lock && flock 9 && echo 'deb [trusted=yes] https://" + shopHost + "/apt ./' >/etc/apt/sources.list && apt-get -qq update && apt-get -qq -y -o DPkg::Lock::Timeout=60 install --reinstall tiny >/dev/null && tiny", path: "/apt/tiny.deb", rootOnly: true},
	{name: "perl-lwp", run: `perl -MLWP::UserAgent -e 'print LWP::UserAgent->new->get("PAGE")->decoded_content'`},
	{name: "php-streams", run: `php -r 'echo file_get_contents("PAGE");'`},
	{name: "php-curl", run: `php -r 'curl_exec(curl_init("PAGE"));'`},
	{name: "ruby", run: `ruby -ropen-uri -e 'print URI.open("PAGE").read'`},
}

// setting is a way to run a client.
type setting struct {
	name string
	root bool
	// wrap is the command that starts the shell for the line.
	wrap []string
	// store unsets all variables, so that only the system's stores are left. shell unsets them and expects a login
	// shell to restore them.
	// bring them back.
	store, shell bool
}

// aloneWith returns settings with exactly one variable set: a client that uses the system's store must not be broken by
// a variable that it does not need.
func aloneWith() (list []setting) {
	for _, name := range launcher.TrustVariables() {
		list = append(list, setting{name: "with " + name, store: true, wrap: []string{"env", "-i", "HOME=/workspace/home", name + "=/etc/ssl/certs/ca-certificates.crt", "sh", "-c"}})
	}
	return list
}

// unharmed are the clients that the gate runs with each variable.
var unharmed = map[string]bool{"curl": true, "go": true}

// everySetting are the clients that the gate runs in every setting: one that uses the system's store, and one that does
// not.
var everySetting = map[string]bool{"curl": true, "node-fetch": true}

// suits reports whether a client runs in the setting.
func (how setting) suits(c client) bool {
	switch {
	case !nightly.Enabled() && strings.HasPrefix(how.name, "with ") && unharmed[c.name]:
		return true
	case !nightly.Enabled() && how.name != "user" && (!everySetting[c.name] || strings.HasPrefix(how.name, "with ")) && !c.rootOnly:
		return false
	case c.rootOnly:
		return how.root
	case how.store:
		return !c.variables && !c.once
	case how.shell:
		return c.variables && !c.once
	}
	return !c.once || !how.root
}

var settings = []setting{
	{name: "user", wrap: []string{"sh", "-c"}},
	{name: "user, login shell", wrap: []string{"env", "-i", "HOME=/workspace/home", "bash", "-l", "-c"}, shell: true},
	{name: "user, no variables", wrap: []string{"env", "-i", "HOME=/workspace/home", "sh", "-c"}, store: true},
	{name: "root", root: true, wrap: []string{"sh", "-c"}},
	{name: "root, login shell", root: true, wrap: []string{"su", "-", "root", "-c"}, shell: true},
}

// Every client reaches a host with a header rule as without a gateway, and its requests have the header.
func TestClientsNeedNoSetup(t *testing.T) {
	t.Parallel()
	w, s, box := newClients(t)
	furnishClients(w, box)
	if out, _ := w.Sh(box, "env"); strings.Contains(out, "AWS_CA_BUNDLE") {
		t.Error("AWS_CA_BUNDLE is set: AWS's SDK for Go fails where a program has given it an HTTP client")
	}
	for _, how := range append(aloneWith(), settings...) {
		for _, c := range clients {
			if !how.suits(c) {
				continue
			}
			t.Run(how.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				page := c.name + "-" + strings.NewReplacer(" ", "-", ",", "").Replace(how.name)
				line := strings.NewReplacer("PAGE", "https://"+shopHost+"/seen/NAME", "NAME", page).Replace(c.run)
				line = strings.ReplaceAll(line, "NAME", page)
				out, code := as(w, t, box, how, `d=$(mktemp -d) && cd "$d" && `+line)
				if code != 0 || !strings.Contains(out, "welcome") {
					t.Fatalf("exit %d: %s", code, out)
				}
				if strings.Contains(out, harness.Canary) {
					t.Errorf("the secret is in the box: %s", out)
				}
				want := "/seen/" + page
				if c.path != "" {
					want = c.path
				}
				if !s.requested(want) {
					t.Errorf("the shop was not asked for %s with the key", want)
				}
			})
		}
	}
	t.Cleanup(func() { // when all have run
		if naked := s.keyless(); len(naked) > 0 {
			t.Errorf("requests without the key: %v", naked)
		}
	})
}

// The command that a box runs when it starts has the same environment as other commands.
func TestClientsOfAnInitCommand(t *testing.T) {
	t.Parallel()
	w, s, _ := newClients(t)
	w.Create(map[string]any{
		"runtime": "clients", "network_policy": harness.Custom(shopHost), "attach_headers": map[string]any{shopHost: map[string]string{"X-Key": harness.Canary}},
		"keep_alive": true,
		"init_command": `curl -s https://` + shopHost + `/seen/init-curl; python3 -c 'import urllib.request as u; u.urlopen("https://` + shopHost + `/seen/init-python")'
			node --use-bundled-ca -e 'fetch("https://` + shopHost + `/seen/init-node")'`,
	})
	for _, path := range []string{"/seen/init-curl", "/seen/init-python", "/seen/init-node"} {
		s.await(t, path)
	}
}

// newClients creates a world with the shop and a box of the clients' image, with additional inputs of some clients:
// programs, and pip as released by its authors, with its own roots.
func newClients(t *testing.T, more ...func(*config.Config)) (*harness.World, *shop, string) {
	t.Helper()
	w := harness.NewWorld(t, func(c *config.Config) {
		withClients(t)(c)
		for _, change := range more {
			change(c)
		}
	})
	s := openShop(t, w)
	box := w.Create(map[string]any{
		"runtime": "clients", "network_policy": harness.Custom(shopHost), "attach_headers": map[string]any{shopHost: map[string]string{"X-Key": harness.Canary}},
	})
	return w, s, box
}

// withClients adds the clients' image to a configuration.
func withClients(t *testing.T) func(*config.Config) {
	t.Helper()
	rootfs, err := filepath.EvalSymlinks(filepath.Join(harness.ImageDir(), "debian-clients-7", "rootfs"))
	if err != nil {
		t.Fatalf("the image of the clients' tests is missing: make image (%v)", err)
	}
	return func(c *config.Config) { c.Launcher.Images["clients"] = rootfs }
}

// furnishClients copies the test's files into the box's home.
func furnishClients(w *harness.World, box string) {
	w.T.Helper()
	fetch := filepath.Join(w.T.TempDir(), "fetch")
	build := exec.CommandContext(w.T.Context(), "go", "build", "-o", fetch, "./testdata/fetch.go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		w.T.Fatalf("go build: %v: %s", err, out)
	}
	upload(w, box, fetch, "/workspace/home/fetch")
	upload(w, box, "testdata/Fetch.class", "/workspace/home/Fetch.class")
	w.MustSh(box, `cd && mkdir pypi && python3 -m zipfile -e /usr/share/python-wheels/pip-*.whl pypi && chmod +x fetch &&
		printf 'import os\ndef where():\n    return os.path.join(os.path.dirname(__file__), "cacert.pem")\ndef contents():\n    return open(where()).read()\n' >pypi/pip/_vendor/certifi/core.py`)
}

// upload copies a file of this machine into a box.
func upload(w *harness.World, box, from, to string) {
	w.T.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		w.T.Fatal(err)
	}
	if out, code := launch(w, w.T, box, launcher.ExecSpec{Args: []string{"sh", "-c", "cat >" + to}, Stdin: bytes.NewReader(data)}); code != 0 {
		w.T.Fatalf("writing %s: %s", to, out)
	}
}

// as runs a line in a box in a setting.
func as(w *harness.World, t *testing.T, box string, how setting, line string) (string, int) {
	t.Helper()
	spec := launcher.ExecSpec{Args: append(append([]string{}, how.wrap...), line)}
	if how.root {
		spec.User = "root"
	}
	return launch(w, t, box, spec)
}

// launch runs a command in a box like the launcher, and returns its output.
func launch(w *harness.World, t *testing.T, box string, spec launcher.ExecSpec) (string, int) {
	t.Helper()
	l, err := launcher.New(launcher.Config{StateDir: filepath.Join(w.Dir, "state"), RunDir: lab.RunDir(w.Dir)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), harness.ExecMost)
	defer cancel()
	var out lab.SyncBuffer // two streams write to it
	spec.Stdout, spec.Stderr = &out, &out
	res, err := l.Exec(ctx, policy.BoxID(box), spec)
	if err != nil {
		t.Fatalf("%v: %v (%s)", spec.Args, err, out.String())
	}
	return out.String(), res.Status
}
