package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// fleetTour is one run of the tour of a fleet.
type fleetTour struct {
	*tour
	options    Options
	cluster    *cluster
	ids        []string // of the hosts
	key        string   // API key of the fleet
	late       string   // another one, which is revoked while a host is cut off
	url, ca    string   // of the box on the second host, and the file with the CA
	fenceAfter time.Duration
}

// RunFleet is [Run] for three gateways that are one fleet.
func RunFleet(ctx context.Context, out io.Writer, o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("the demo makes network namespaces and containers and needs root: run `sudo make demo-fleet`")
	}
	if _, err := os.Stat(o.Etcd); err != nil {
		return fmt.Errorf("there is no etcd at %s: build it with `make etcd`, or name another with --etcd", o.Etcd)
	}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: install iproute2 and nftables", program)
		}
	}
	d := &fleetTour{tour: newTour(out, o), options: o}
	defer d.out.stop()
	d.steps = d.fleetSteps()
	d.narrate("boxgate: three gateways and an etcd, each in a network namespace made for this run, on one switch.")
	return d.runAll(ctx, func() {}, d.cleanUp, d.summaryLines)
}

func (d *fleetTour) fleetSteps() []step {
	return []step{
		{"Three hosts become a fleet",
			"The first founds it in etcd; each further one joins with a token for one host.",
			d.found},
		{"One API key is valid on every host",
			"It is made on host 1, by the usual command. Host 3 accepts it within a second.",
			d.showKey},
		{"Host 1 takes calls for a box of host 2",
			"The ID of a box begins with the ID of its host, and a name is looked up in etcd. Host 2 checks the key itself.",
			d.showCall},
		{"A visitor of host 1 reaches a public URL of host 2",
			"Host 1 reads the name in the ClientHello, and passes the connection on. TLS ends at host 2 only.",
			d.showVisitor},
		{"Host 3 is cut off from the network of the fleet, and fences itself",
			"A rule of nftables drops each packet between it and etcd and the other hosts. Its lease ends after 15 seconds.",
			d.showFence},
		{"The boxes of the fenced host go on, under their policies",
			"They need neither etcd nor the other hosts.",
			d.showLocal},
		{"An API key is revoked while host 3 is cut off",
			"The answer comes as soon as no host with a lease accepts the key. A fenced host accepts no key of the fleet.",
			d.showRevoked},
		{"Host 3 is back, and knows the changes that it missed",
			"The rule is deleted. The fence opens when the host has a lease again and has applied the changes.",
			d.showHealed},
	}
}

// on runs `gateway args...` on a host with a key of the fleet, or the host's own if key is empty, and shows it.
func (d *fleetTour) on(ctx context.Context, host int, key string, args ...string) (result, error) {
	d.prompt = fmt.Sprintf("host-%d ", host+1)
	shown := "gateway " + quoteAll(args)
	switch key {
	case "":
	case d.late:
		shown = "BOXGATE_API_KEY=$TEMPORARY " + shown
	default:
		shown = "BOXGATE_API_KEY=$OPS " + shown
	}
	return d.sh(ctx, shown, d.command(ctx, host, key, args...), d.cluster.hosts[host].Net.Gateway())
}

// command prepares a command that is not shown.
func (d *fleetTour) command(ctx context.Context, host int, key string, args ...string) *exec.Cmd {
	cmd := d.cluster.hosts[host].Command(ctx, args...)
	if key != "" {
		cmd.Env = append(cmd.Env, "BOXGATE_API_KEY="+key)
	}
	return cmd
}

// quietly runs a command without showing it, and returns its standard output.
func (d *fleetTour) quietly(ctx context.Context, host int, key string, args ...string) (string, error) {
	cmd := d.command(ctx, host, key, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := d.cluster.hosts[host].Net.Gateway().Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return errs.String(), err
	}
	return out.String(), ctx.Err()
}

// patience bounds the wait for one effect.
const patience = time.Minute

// await waits until a command of a host succeeds, or with fails until it fails with that text.
func (d *fleetTour) await(ctx context.Context, what string, host int, key, fails string, args ...string) error {
	var last string
	err := until(ctx, patience, func() bool {
		out, err := d.quietly(ctx, host, key, args...)
		last = out
		return (err != nil) == (fails != "") && strings.Contains(out, fails)
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %s", what, err, clip(last, 400))
	}
	return nil
}

func (d *fleetTour) found(ctx context.Context) error {
	var err error
	if d.cluster, err = newCluster(ctx, d.options); err != nil {
		return err
	}
	if err := d.ensureImage(ctx, d.cluster.hosts[0]); err != nil {
		return err
	}
	token := filepath.Join(d.cluster.dir, "token")
	for i, l := range d.cluster.hosts {
		args := []string{"fleet", "init"}
		if i > 0 {
			made, err := d.quietly(ctx, 0, "", "fleet", "token")
			if err == nil {
				err = os.WriteFile(token, []byte(made), 0o600)
			}
			if err != nil {
				return fmt.Errorf("gateway fleet token: %w: %s", err, made)
			}
			fmt.Fprintf(d.out, "   %s\n", d.styled(cyan, "host-1 $ gateway fleet token > token"))
			args = []string{"fleet", "join", "--token-file", token}
		}
		r, err := d.on(ctx, i, "", args...)
		if err != nil || r.code != 0 {
			return errors.Join(err, r.expect(0, ""))
		}
		_, id, _ := strings.Cut(r.out, "This host (")
		id, _, _ = strings.Cut(id, ")")
		d.ids = append(d.ids, id)
		if err := l.Start(ctx); err != nil {
			return err
		}
		d.narrate(fmt.Sprintf("host %d is ready; admin API on %s", i+1, l.Socket))
	}
	r, err := d.on(ctx, 0, "", "fleet", "status")
	if err != nil {
		return err
	}
	if strings.Count(r.out, "  running  ") != hostCount {
		return errors.New("not every host is running")
	}
	return nil
}

// makeKey makes an API key of the fleet on host 1.
func (d *fleetTour) makeKey(ctx context.Context, name string) (string, error) {
	r, err := d.on(ctx, 0, "", "api-key", "create", "--name", name, "--role", "admin", "--json")
	if err != nil || r.code != 0 {
		return "", errors.Join(err, r.expect(0, ""))
	}
	var made struct {
		Key   string
		Fleet bool
	}
	if err := json.Unmarshal([]byte(r.out), &made); err != nil || !made.Fleet {
		return "", fmt.Errorf("the key is not one of the fleet: %w", err)
	}
	return made.Key, nil
}

func (d *fleetTour) showKey(ctx context.Context) error {
	var err error
	if d.key, err = d.makeKey(ctx, "ops"); err != nil {
		return err
	}
	if err := d.await(ctx, "host 3 accepts the key", 2, d.key, "", "box", "list"); err != nil {
		return err
	}
	r, err := d.on(ctx, 2, d.key, "box", "create", "--name", "worker", "--policy", `{"mode":"custom","allowed_domains":["api.example.com"]}`)
	return errors.Join(err, r.expect(0, d.ids[2]))
}

func (d *fleetTour) showCall(ctx context.Context) error {
	r, err := d.on(ctx, 1, d.key, "box", "create", "--name", "web", "--policy", "deny-all")
	if err != nil || r.expect(0, d.ids[1]) != nil {
		return errors.Join(err, r.expect(0, d.ids[1]))
	}
	if err := d.await(ctx, "host 1 reaches host 2", 0, d.key, "", "box", "get", "web"); err != nil {
		return err
	}
	r, err = d.on(ctx, 0, d.key, "box", "exec", "web", "--", "sh", "-c", "echo on host 2 > index.html; cat index.html")
	if err != nil || r.expect(0, "on host 2") != nil {
		return errors.Join(err, r.expect(0, "on host 2"))
	}
	r, err = d.on(ctx, 0, d.key, "box", "list")
	return errors.Join(err, r.expect(0, `(?s)web.*worker|worker.*web`))
}

func (d *fleetTour) showVisitor(ctx context.Context) error {
	line := "setsid busybox httpd -f -p 8000 >/dev/null 2>&1 & until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.05; done"
	r, err := d.on(ctx, 0, d.key, "box", "exec", "web", "--", "sh", "-c", line)
	if err != nil || r.code != 0 {
		return errors.Join(err, r.expect(0, ""))
	}
	r, err = d.on(ctx, 0, d.key, "url", "create", "web", "8000", "--json")
	if err != nil || r.code != 0 {
		return errors.Join(err, r.expect(0, ""))
	}
	var made struct{ URL string }
	if err := json.Unmarshal([]byte(r.out), &made); err != nil {
		return fmt.Errorf("gateway url create: %w", err)
	}
	pem, err := d.quietly(ctx, 1, "", "ca")
	if err != nil {
		return fmt.Errorf("gateway ca: %w: %s", err, pem)
	}
	d.url, d.ca = made.URL, filepath.Join(d.cluster.dir, "url-ca.pem")
	if err := os.WriteFile(d.ca, []byte(pem), 0o600); err != nil {
		return err
	}
	return d.visit(ctx)
}

// visit shows a visitor who asks host 1 for the public URL.
func (d *fleetTour) visit(ctx context.Context) error {
	u, err := url.Parse(d.url)
	if err != nil {
		return err
	}
	host := d.cluster.hosts[0]
	v4, _ := host.Net.GatewayAddrs()
	args := []string{"-sS", "-w", "%{http_code}\\n", "--max-time", "20", "--cacert", d.ca, "--resolve", u.Hostname() + ":443:" + v4.String(), d.url}
	d.prompt = "visitor "
	r, err := d.sh(ctx, "curl "+quoteAll(args), exec.CommandContext(ctx, "curl", args...), host.Net.Internet())
	return errors.Join(err, r.expect(0, `(?s)on host 2.*200`))
}

// cutRules drop everything between a host and the switch.
const cutRules = "table inet cut { chain in { type filter hook input priority -300; iifname lan0 drop; }; chain out { type filter hook output priority -300; oifname lan0 drop; }; }"

// nft runs a command of nftables on host 3, and shows it.
func (d *fleetTour) nft(ctx context.Context, rules string) error {
	d.prompt = "host-3 "
	r, err := d.sh(ctx, "nft "+quoteAll([]string{rules}), exec.CommandContext(ctx, "nft", rules), d.cluster.hosts[2].Net.Gateway())
	return errors.Join(err, r.expect(0, ""))
}

func (d *fleetTour) showFence(ctx context.Context) error {
	var err error
	if d.late, err = d.makeKey(ctx, "temporary"); err != nil {
		return err
	}
	if err := d.await(ctx, "host 3 accepts the key", 2, d.late, "", "box", "list"); err != nil {
		return err
	}
	if err := d.nft(ctx, cutRules); err != nil {
		return err
	}
	start := time.Now()
	if err := d.await(ctx, "host 3 is fenced", 2, d.key, "cut off from its fleet", "box", "list"); err != nil {
		return err
	}
	d.fenceAfter = time.Since(start)
	d.narrate(fmt.Sprintf("fenced %.1f s after the cut.", d.fenceAfter.Seconds()))
	r, err := d.on(ctx, 2, "", "fleet", "status") // asks etcd, and then this gateway
	if err != nil || r.expect(1, `This host \(`+d.ids[2]+`\) is fenced`) != nil {
		return errors.Join(err, r.expect(1, "is fenced"))
	}
	r, err = d.on(ctx, 2, "", "box", "create", "--name", "new")
	if err != nil || r.expect(1, "cut off from its fleet") != nil {
		return errors.Join(err, r.expect(1, "cut off from its fleet"))
	}
	if err := until(ctx, patience, func() bool {
		out, err := d.quietly(ctx, 0, "", "fleet", "status")
		return err == nil && strings.Contains(out, "  away  ")
	}); err != nil {
		return fmt.Errorf("etcd has not ended the lease of host 3: %w", err)
	}
	r, err = d.on(ctx, 0, "", "fleet", "status")
	return errors.Join(err, r.expect(0, d.ids[2]+`.*away`))
}

func (d *fleetTour) showLocal(ctx context.Context) error {
	fetch := []string{"box", "exec", "worker", "--", "curl", "-sS", "-o", "/dev/null", "https://api.example.com/echo"}
	r, err := d.on(ctx, 2, "", fetch...)
	if err != nil || r.code != 0 {
		return errors.Join(err, r.expect(0, ""))
	}
	r, err = d.on(ctx, 2, "", "policy", "set", "worker", "deny-all")
	if err != nil || r.code != 0 {
		return errors.Join(err, r.expect(0, ""))
	}
	r, err = d.on(ctx, 2, "", fetch...)
	if err == nil && r.code == 0 {
		err = errors.New("the box still reaches the host that its policy denies")
	}
	return err
}

func (d *fleetTour) showRevoked(ctx context.Context) error {
	r, err := d.on(ctx, 0, d.key, "api-key", "rm", "temporary")
	if err != nil || r.code != 0 {
		return errors.Join(err, r.expect(0, ""))
	}
	if err := d.visit(ctx); err != nil { // host 1 and 2 are not affected
		return err
	}
	r, err = d.on(ctx, 2, d.late, "box", "list")
	return errors.Join(err, r.expect(1, "cut off from its fleet"))
}

func (d *fleetTour) showHealed(ctx context.Context) error {
	if err := d.nft(ctx, "delete table inet cut"); err != nil {
		return err
	}
	start := time.Now()
	if err := d.await(ctx, "host 3 is not fenced any longer", 2, d.key, "", "box", "list"); err != nil {
		return err
	}
	d.narrate(fmt.Sprintf("back %.1f s after the rule was deleted. The revoked key:", time.Since(start).Seconds()))
	r, err := d.on(ctx, 2, d.late, "box", "list")
	if err != nil || r.expect(1, "does not accept the API key") != nil {
		return errors.Join(err, r.expect(1, "does not accept the API key"))
	}
	if err := until(ctx, patience, func() bool {
		out, err := d.quietly(ctx, 0, "", "fleet", "status")
		return err == nil && strings.Count(out, "  running  ") == hostCount
	}); err != nil {
		return fmt.Errorf("host 3 is not running for the others: %w", err)
	}
	if err := d.await(ctx, "host 1 reaches host 3", 0, d.key, "", "box", "get", "worker"); err != nil {
		return err
	}
	r, err = d.on(ctx, 0, d.key, "box", "exec", "worker", "--", "echo", "host 3 answers host 1")
	return errors.Join(err, r.expect(0, "host 3 answers host 1"))
}

// cleanUp ends the cluster and looks for leftovers.
func (d *fleetTour) cleanUp(context.Context) error {
	if d.cluster == nil {
		return nil
	}
	if err := d.cluster.close(); err != nil {
		return err
	}
	d.narrate("No process, mount, namespace, rule or file of the demo is left.")
	return nil
}

// summaryLines summarises the shown promises.
func (d *fleetTour) summaryLines() []string {
	return []string{
		"Three hosts became a fleet by one command each; each keeps its boxes in its own store.",
		"One API key was valid on all of them, and a command on host 1 ran in a box of host 2.",
		"A visitor of host 1 reached a public URL of host 2, and TLS ended there only.",
		fmt.Sprintf("A host without etcd fenced itself after %.0f s. Its boxes went on, and their policies could be tightened.", d.fenceAfter.Seconds()),
		"A key revoked in the meantime is accepted by no host, the one that had been cut off included.",
	}
}
