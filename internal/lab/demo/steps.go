package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"boxgate/config"
	"boxgate/internal/lab"
	"boxgate/internal/testnet"
)

// demoSteps returns the promises in the order shown.
func (d *tour) demoSteps() []step {
	return []step{
		{"The gateway starts beside an internet of its own",
			"DNS, HTTPS, WebSocket and an attacker's host on documentation addresses; the gateway in a namespace beside them.",
			d.startGateway},
		{"A box is launched, closed to all but one host",
			"The policy names api.example.com. The header rule holds an API key: it goes to the gateway, never into the box.",
			d.launchBox},
		{"The request from the box carries no key; the server receives it",
			"Inside the box curl sends nothing but a plain request. /echo shows what reached the server.",
			d.showInjection},
		{"The box holds the key nowhere",
			"We search the environment, /proc and every file of the box for it.",
			d.searchBox},
		{"A host that is not on the list is refused",
			"evil.example.net is refused by name with a TLS alert, before any certificate: curl exits 35.",
			d.showDenied},
		{"The metadata address is refused although the policy lists it",
			"allowed_cidrs holds 169.254.169.254/32. Protected ranges win over every policy.",
			d.showMetadata},
		{"The policy is opened while the box runs, and the same command works",
			"`gateway policy allow` returns when the new policy is in force everywhere. (-k: the host's certificate is self-signed.)",
			d.showOpened},
		{"An open connection is cut when the policy closes",
			"The box reads an endless stream from evil.example.net; then the policy closes.",
			d.showCut},
		{"A public URL answers 401 without its token and 200 with it",
			"A web server in the box, reached over HTTPS with the installation's own CA.",
			d.showURL},
	}
}

func (d *tour) startGateway(ctx context.Context) error {
	var err error
	if d.lab, err = lab.New(ctx, lab.Options{Gateway: d.program, ImageDir: d.imageDir, Change: smallImage}); err != nil {
		return err
	}
	if err := d.ensureImage(ctx, d.lab); err != nil {
		return err
	}
	start := time.Now()
	if err := d.lab.Start(ctx); err != nil {
		return err
	}
	d.narrate(fmt.Sprintf("ready after %d ms; admin API on %s", time.Since(start).Milliseconds(), d.lab.Socket))
	return nil
}

// demoImage is the image of the demo's box: it is built in a fraction of the time of the default one.
const demoImage = "debian-min"

// smallImage makes demoImage the default image.
func smallImage(cfg *config.Config) { cfg.Launcher.Images["default"] = demoImage }

// imagePatience is the time an interrupted image build has to remove its files.
const imagePatience = time.Minute

// ensureImage makes the gateway build the image of the box unless it exists, and shows the progress.
func (d *tour) ensureImage(ctx context.Context, l *lab.Lab) error {
	cmd := l.Command(ctx, "image", "pull", demoImage)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the tour handles Ctrl-C; a second signal would kill the command
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, imagePatience
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		d.narrate(lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("the image of the box: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// demoPolicy lists the metadata address on purpose.
const demoPolicy = `{"mode":"custom","allowed_domains":["api.example.com"],"allowed_cidrs":["169.254.169.254/32"]}`

func (d *tour) launchBox(ctx context.Context) error {
	headers := filepath.Join(d.lab.Dir, "headers.json")
	rules := map[string]map[string]string{"api.example.com": {"Authorization": "Bearer " + d.secret}}
	data, err := json.Marshal(rules)
	if err != nil {
		return err
	}
	if err := os.WriteFile(headers, data, 0o600); err != nil {
		return err
	}
	r, err := d.gateway(ctx, "box", "create", "--name", "demo", "--policy", demoPolicy, "--headers", "@"+headers)
	if err != nil {
		return err
	}
	return r.expect(0, `demo`)
}

func (d *tour) showInjection(ctx context.Context) error {
	r, err := d.inBox(ctx, "curl", "-sS", "https://api.example.com/echo")
	if err != nil {
		return err
	}
	if err := r.expect(0, `"method"`); err != nil {
		return err
	}
	if !strings.Contains(r.out, d.secret) {
		return errors.New("the server did not receive the key")
	}
	seen := d.lab.Net.Received("api.example.com", testnet.Path("/echo"))
	if len(seen) != 1 || seen[0].Header.Get("Authorization") != "Bearer "+d.secret {
		return fmt.Errorf("the server's own record does not show the key (%d requests)", len(seen))
	}
	d.narrate("the server's own record: Authorization: " + seen[0].Header.Get("Authorization"))
	return d.decision(ctx, `"api.example.com"`, `"intercept"`, `"Authorization"`)
}

func (d *tour) searchBox(ctx context.Context) error {
	r, err := d.shellInBox(ctx, lab.SearchLine(d.secret))
	if err != nil {
		return err
	}
	if got := strings.Fields(r.out); len(got) != 3 || strings.Join(got, "") != "000" {
		return fmt.Errorf("the key was found in the box: %q", r.out)
	}
	d.narrate("environment 0, /proc 0, files 0 matches.")
	return nil
}

// evilFetch is the command that is first refused, and then works.
var evilFetch = []string{"curl", "-sS", "-o", "/dev/null", "-w", `%{http_code}\n`, "https://evil.example.net/"}

func (d *tour) showDenied(ctx context.Context) error {
	r, err := d.inBox(ctx, evilFetch...)
	if err != nil {
		return err
	}
	if r.code != 35 {
		return fmt.Errorf("curl exited with %d, not 35", r.code)
	}
	if n := len(d.lab.Net.Received("evil.example.net", testnet.Any)); n != 0 {
		return fmt.Errorf("the refused host received %d connections", n)
	}
	d.narrate("evil.example.net received nothing.")
	return d.decision(ctx, `"evil.example.net"`, `"conn"`, `"deny"`, `"not_allowed"`)
}

func (d *tour) showMetadata(ctx context.Context) error {
	r, err := d.inBox(ctx, "curl", "-sS", "-m", "5", "http://169.254.169.254/latest/meta-data/")
	if err != nil {
		return err
	}
	if r.code == 0 {
		return errors.New("the metadata address answered")
	}
	if n := len(d.lab.Net.Received("169.254.169.254", testnet.Any)); n != 0 {
		return fmt.Errorf("the metadata host received %d connections", n)
	}
	d.narrate("the metadata host received nothing.")
	return d.decision(ctx, `169.254.169.254`, `"deny"`, `"protected_range"`)
}

func (d *tour) showOpened(ctx context.Context) error {
	r, err := d.gateway(ctx, "policy", "allow", "demo", "evil.example.net:443")
	if err != nil {
		return err
	}
	if err := r.expect(0, `evil\.example\.net:443: allowed`); err != nil {
		return err
	}
	// evil.example.net has a self-signed certificate, so the box is configured to accept it.
	if r, err = d.inBox(ctx, append([]string{"curl", "-k"}, evilFetch[1:]...)...); err != nil {
		return err
	}
	return r.expect(0, `200`)
}

func (d *tour) showCut(ctx context.Context) error {
	line := "curl -k -sS -N https://evil.example.net/sse"
	cmd := d.lab.Command(ctx, "box", "exec", "demo", "--", "sh", "-c", line)
	var out lab.SyncBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	d.narrate("$ gateway box exec demo -- " + line + "   (in the background)")
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // see ProcessState
	}()
	if err := out.Await(ctx, "data:"); err != nil {
		_ = cmd.Process.Kill()
		return fmt.Errorf("the stream did not begin: %w (%s)", err, out.String())
	}
	d.narrate("the stream runs: " + strings.SplitN(strings.TrimSpace(out.String()), "\n", 2)[0])
	if _, err := d.gateway(ctx, "policy", "deny", "demo", "evil.example.net"); err != nil {
		return err
	}
	start := time.Now()
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		_ = cmd.Process.Kill()
		return errors.New("the stream still ran 5 seconds after the policy closed")
	}
	d.cutAfter = time.Since(start)
	d.narrate(fmt.Sprintf("curl ended with status %d, %d ms after the policy closed.", cmd.ProcessState.ExitCode(), d.cutAfter.Milliseconds()))
	if cmd.ProcessState.ExitCode() == 0 {
		return errors.New("the stream ended as if it were complete")
	}
	return d.decision(ctx, `"evil.example.net"`, `"policy_changed"`)
}

func (d *tour) showURL(ctx context.Context) error {
	if r, err := d.shellInBox(ctx, "echo 'hello from the box' > index.html; "+
		"setsid busybox httpd -f -p 8000 >/dev/null 2>&1 & "+
		"until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.05; done"); err != nil || r.code != 0 {
		return errors.Join(err, r.expect(0, ``))
	}
	r, err := d.gateway(ctx, "--json", "url", "create", "demo", "8000", "--bearer")
	if err != nil {
		return err
	}
	var made struct{ URL, Token string }
	if err := json.Unmarshal([]byte(r.out), &made); err != nil {
		return fmt.Errorf("gateway url create: %w", err)
	}
	ca := filepath.Join(d.lab.Dir, "url-ca.pem")
	pem, err := d.lab.Command(ctx, "ca").Output()
	if err != nil {
		return fmt.Errorf("gateway ca: %w", err)
	}
	if err := os.WriteFile(ca, pem, 0o600); err != nil {
		return err
	}
	if r, err = d.fetch(ctx, made.URL, ca); err != nil || r.expect(0, `401`) != nil {
		return errors.Join(err, r.expect(0, `401`))
	}
	r, err = d.fetch(ctx, made.URL, ca, "-H", "Authorization: Bearer "+made.Token)
	return errors.Join(err, r.expect(0, `(?s)hello from the box.*200`))
}

// fetch runs curl next to the gateway, like a visitor of a public URL.
func (d *tour) fetch(ctx context.Context, url, ca string, extra ...string) (result, error) {
	args := append([]string{"-sS", "-w", "%{http_code}\\n", "--cacert", ca}, extra...)
	args = append(args, url)
	return d.sh(ctx, "curl "+quoteAll(args), exec.CommandContext(ctx, "curl", args...), d.lab.Net.Gateway())
}
