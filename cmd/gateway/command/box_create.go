package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"boxgate/api"
	"boxgate/cmd/gateway/command/boxes"
	"boxgate/cmd/gateway/command/cli"
	"boxgate/cmd/gateway/command/oci"
)

// boxCreate holds the flags of `gateway box create`.
type boxCreate struct {
	name, size, runtime, user, home, policy, headers, snapshot, placement string
	sources, limits, labels, metadata                                     []string
	more                                                                  boxes.CreateFlags
}

func newBoxCreate(o *cli.Options) *cobra.Command {
	var c boxCreate
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a box and print it",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := c.body(cmd)
			if err != nil {
				return err
			}
			path := "/v2/box"
			if c.placement != "" {
				if c.snapshot != "" {
					return cli.Usagef("a box is made of a snapshot on the host that has it; leave out --placement")
				}
				path += "?placement=" + url.QueryEscape(c.placement)
			}
			if c.snapshot != "" {
				path, body["snapshot_id"] = path+"/from-snapshot", c.snapshot
			}
			client, err := o.QuietClient()
			if err != nil {
				return err
			}
			stop := showBoxProgress(cmd.Context(), client, c.name, cmd.ErrOrStderr())
			var answer json.RawMessage
			err = client.Do(cmd.Context(), "POST", path, body, &answer)
			stop()
			if err != nil {
				return cli.NameTaken(cmd.Context(), client, c.name, err)
			}
			return o.Show(cmd, answer, newBoxAnswer(cmd))
		},
	}
	cli.MapFields(cmd, sentByBox)
	cli.MapFields(cmd, map[string]string{"/snapshot_id": "--from-snapshot"})
	f := cmd.Flags()
	f.StringVar(&c.name, "name", "", "a name of your choice")
	f.StringVar(&c.size, "size", "", "small (2 CPU, 4 GB), medium (4, 8) or large (8, 16)")
	f.StringVar(&c.runtime, "runtime", "", "name of a runtime in launcher.images (default: default)")
	f.StringVar(&c.user, "user", "", "name of the box's ordinary user (default: boxuser)")
	f.StringVar(&c.home, "home", "", "home directory of that user, below /home or /workspace (default: /workspace/home)")
	f.StringVar(&c.policy, "policy", "", "network policy: "+cli.BoxPolicyHelp+" (default: the gateway's policy.default)")
	f.StringVar(&c.headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -; a file keeps secrets out of the process list`)
	f.StringVar(&c.snapshot, "from-snapshot", "", "ID of a snapshot with the files of the box; also its size and policy unless they are given")
	f.StringVar(&c.placement, "placement", "", "the host for the box in a fleet: here, or spread for the emptier of two (default: fleet.placement)")
	f.StringArrayVar(&c.labels, "label", nil, labelHelp)
	f.StringArrayVar(&c.metadata, "metadata", nil, "text about the box for your programs, KEY=VALUE (may be repeated)")
	f.StringArrayVar(&c.sources, "source", nil, sourceHelp)
	f.StringArrayVar(&c.limits, "limit", nil, limitHelp)
	c.more.Add(cmd)
	return cmd
}

func (c *boxCreate) body(cmd *cobra.Command) (boxBody, error) {
	body := boxBody{}
	body.setText(map[string]string{"name": c.name, "size": c.size, "runtime": c.runtime, "user": c.user, "home": c.home})
	if err := body.setNetwork(c.policy, c.headers, cmd.InOrStdin()); err != nil {
		return nil, err
	}
	body.setLabels(c.labels)
	metadata, err := metadataOf(c.metadata)
	if err != nil {
		return nil, err
	}
	if len(metadata) > 0 {
		body["metadata"] = metadata
	}
	body.setSources(c.sources)
	if err := body.setLimits(c.limits); err != nil {
		return nil, err
	}
	return body, c.more.Set(cmd, body)
}

// boxBody is the request for a new box.
type boxBody map[string]any

// sentByBox maps members of the request for a new box to flags, for commands that create boxes.
var sentByBox = map[string]string{"/network_policy": "--policy", "/network_policy/named": "--policy", "/attach_headers": "--headers", "/source_addresses": "--source", "/limits": "--limit=", "/labels": "--label", "/metadata": "--metadata="}

// setText sets the fields that are not empty.
func (b boxBody) setText(fields map[string]string) {
	for key, value := range fields {
		if value != "" {
			b[key] = value
		}
	}
}

// sourceHelp is the help text of --source.
const sourceHelp = "address from network.sources that its traffic leaves from; once for IPv4, once for IPv6"

// setSources sets the source addresses, if the command line contains any.
func (b boxBody) setSources(list []string) {
	if len(list) > 0 {
		b["source_addresses"] = list
	}
}

// labelHelp is the help text of --label of commands that create boxes.
const labelHelp = "label such as team=x, up to 5 (may be repeated); commands with --label select boxes by it"

// setLabels sets the labels, if the command line contains any.
func (b boxBody) setLabels(list []string) {
	if len(list) > 0 {
		b["labels"] = list
	}
}

// setLimits sets the limits, if the command line contains any.
func (b boxBody) setLimits(args []string) error {
	limits, err := limitsOf(args)
	if len(limits) > 0 {
		b["limits"] = limits
	}
	return err
}

// setNetwork sets the policy and the header rules, if the command line contains them.
func (b boxBody) setNetwork(policy, headers string, stdin io.Reader) error {
	if policy != "" {
		data, err := cli.PolicyArgument(policy, cli.BoxPolicyHelp, stdin)
		if err != nil {
			return fmt.Errorf("--policy: %w", err)
		}
		b["network_policy"] = data
	}
	if headers != "" {
		data, err := cli.RulesArgument(headers, stdin)
		if err != nil {
			return fmt.Errorf("--headers: %w", err)
		}
		b["attach_headers"] = data
	}
	return nil
}

// progressPoll is how often the progress of a new box is requested.
const progressPoll = time.Second

// creatingBox holds the fields of a box that show its progress.
type creatingBox struct {
	Name, Status, Progress string
	CreatedAt              int64 `json:"created_at"`
}

// boxProgress follows the creation of a new box: the preparation of its image can take minutes.
type boxProgress struct {
	client *api.Client
	name   string                 // of the box; empty: the newest box that is being created
	image  atomic.Pointer[string] // progress of the image; nil: it is not being prepared
}

// showBoxProgress shows the progress of a new box until stop is called.
func showBoxProgress(ctx context.Context, client *api.Client, name string, out io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	p := &boxProgress{client: client, name: name}
	var running sync.WaitGroup
	running.Go(func() { p.poll(ctx) })
	end := cli.NewProgress(out, p.text).Begin()
	return func() { cancel(); running.Wait(); end() }
}

// poll requests the progress until ctx ends. A slow gateway delays it, but not the text.
func (p *boxProgress) poll(ctx context.Context) {
	tick := time.NewTicker(progressPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := p.current(ctx)
			p.image.Store(&now)
		}
	}
}

func (p *boxProgress) text() string {
	if now := p.image.Load(); now != nil && *now != "" {
		return fmt.Sprintf("preparing the image: %.60s", *now)
	}
	return "creating the box"
}

// current returns the progress of the box. It is empty if the image is not being prepared, or if the gateway does not
// answer: the request that creates the box reports errors.
func (p *boxProgress) current(ctx context.Context) string {
	var boxes []creatingBox
	if p.name != "" {
		boxes = make([]creatingBox, 1)
		if p.client.Get(ctx, api.BoxPath(p.name), &boxes[0]) != nil {
			return ""
		}
	} else if p.client.Get(ctx, "/v2/box", &boxes) != nil {
		return ""
	}
	var newest creatingBox
	for _, b := range boxes {
		if b.Status == string(api.StatusCreating) && b.CreatedAt >= newest.CreatedAt {
			newest = b
		}
	}
	return newest.Progress
}

// sandbox holds the flags that select the sandbox to attach.
type sandbox struct {
	netns, container string
	pid              int
}

// add defines the flags.
func (s *sandbox) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.netns, "netns", "", "path of its network namespace, such as /run/netns/NAME")
	f.IntVar(&s.pid, "pid", 0, "ID of a process in its network namespace")
	f.StringVar(&s.container, "container", "", "ID or name of a Docker container, started with --network none")
}

// body returns the flags as fields of the API.
func (s *sandbox) body() boxBody {
	body := boxBody{}
	body.setText(map[string]string{"netns": s.netns, "container": s.container})
	if s.pid != 0 {
		body["pid"] = s.pid
	}
	return body
}

// boxAttach holds the flags of `gateway box attach`.
type boxAttach struct {
	sandbox
	name, policy, headers, stack string
	sources, limits, labels      []string
	installCA, disconnect        bool

	tap        string
	owner      int
	multiQueue bool
	noDHCP     bool

	remote   bool
	lifetime time.Duration
}

func newBoxAttach(o *cli.Options) *cobra.Command {
	var a boxAttach
	cmd := &cobra.Command{
		Use:   "attach (--netns PATH | --pid PID | --container ID | --tap NAME [--netns PATH] | --remote)",
		Short: "Attach an existing sandbox to the gateway and print it",
		Args:  cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := a.body(cmd.InOrStdin())
			if err != nil {
				return err
			}
			if err := a.prepareContainer(cmd, o); err != nil {
				return err
			}
			client, err := o.Client()
			if err != nil {
				return err
			}
			var answer json.RawMessage
			if err := client.Do(cmd.Context(), "POST", "/v2/box/attach", body, &answer); err != nil {
				return cli.NameTaken(cmd.Context(), client, a.name, err)
			}
			if a.remote {
				return a.giveToken(cmd, o, answer)
			}
			return errors.Join(o.Show(cmd, answer, newBoxAnswer(cmd)), a.installInContainer(cmd, o, answer))
		},
	}
	a.add(cmd)
	cli.MapFields(cmd, sentByBox)
	cli.MapFields(cmd, map[string]string{"/tap": "--tap", "/tap/name": "--tap", "/tap/owner": "--owner"})
	f := cmd.Flags()
	f.BoolVar(&a.remote, "remote", false, "the sandbox runs elsewhere: make a box with a token for remote.listen, which is shown once")
	f.DurationVar(&a.lifetime, "lifetime", 0, "with --remote: "+lifetimeHelp)
	f.StringVar(&a.tap, "tap", "", "make a tap of this name for a virtual machine, in the namespace of --netns or in the gateway's")
	f.IntVar(&a.owner, "owner", 0, "with --tap: ID of the user who may open it (default: root)")
	f.BoolVar(&a.multiQueue, "multi-queue", false, "with --tap: the virtual machine opens it with several queues")
	f.BoolVar(&a.noDHCP, "no-dhcp", false, "with --tap: answer no DHCP, DHCPv6 and router solicitations of the virtual machine")
	f.StringVar(&a.stack, "stack", "", "which network stack uses the interface: host (default), or guest for gVisor and virtual machines")
	f.StringVar(&a.name, "name", "", "a name of your choice")
	f.StringVar(&a.policy, "policy", "", "network policy: "+cli.BoxPolicyHelp+" (default: the gateway's policy.default)")
	f.StringArrayVar(&a.labels, "label", nil, labelHelp)
	f.StringArrayVar(&a.sources, "source", nil, sourceHelp)
	f.StringArrayVar(&a.limits, "limit", nil, limitHelp)
	f.BoolVar(&a.installCA, "install-ca", false, "with --container: make the container trust the CA of its box")
	f.BoolVar(&a.disconnect, "disconnect", false, "with --container: disconnect it from Docker's networks without asking")
	f.StringVar(&a.headers, "headers", "", `header rules as for "gateway headers set": JSON or YAML, @FILE or -`)
	return cmd
}

func (a *boxAttach) body(stdin io.Reader) (boxBody, error) {
	if a.netns == "" && a.container == "" && a.pid == 0 && a.tap == "" && !a.remote {
		return nil, cli.Usagef("give the sandbox to attach: --netns, --pid, --container, --tap or --remote")
	}
	if a.remote && (a.netns != "" || a.container != "" || a.pid != 0 || a.tap != "" || a.stack != "") {
		return nil, cli.Usagef("give --remote without a sandbox of this host and without --stack")
	}
	if a.lifetime != 0 && !a.remote {
		return nil, cli.Usagef("--lifetime needs --remote")
	}
	if a.tap == "" && (a.owner != 0 || a.multiQueue || a.noDHCP) {
		return nil, cli.Usagef("--owner, --multi-queue and --no-dhcp need --tap")
	}
	if a.tap != "" && (a.pid != 0 || a.container != "") {
		return nil, cli.Usagef("give --tap alone or with --netns")
	}
	if len(a.sandbox.body()) > 1 {
		return nil, cli.Usagef("give one of --netns, --pid and --container")
	}
	body := a.sandbox.body()
	body.setText(map[string]string{"name": a.name, "stack": a.stack})
	if a.remote {
		body["remote"] = true
	}
	if a.tap != "" {
		body["tap"] = map[string]any{"name": a.tap, "owner": a.owner, "multi_queue": a.multiQueue, "no_dhcp": a.noDHCP}
	}
	body.setLabels(a.labels)
	body.setSources(a.sources)
	if err := body.setLimits(a.limits); err != nil {
		return nil, err
	}
	return body, body.setNetwork(a.policy, a.headers, stdin)
}

func newBoxReattach(o *cli.Options) *cobra.Command {
	var s sandbox
	cmd := &cobra.Command{
		Use:   "reattach BOX [--netns PATH | --pid PID | --container ID]",
		Short: "Attach a box to its sandbox again, or to another one; its policy, rules, URLs and CA stay",
		Args:  cli.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Call(cmd, "POST", api.BoxPath(args[0], "reattach"), s.body(), newBoxAnswer(cmd))
		},
	}
	s.add(cmd)
	return cmd
}

func newBoxDetach(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "detach BOX...", Short: "Disconnect attached boxes and delete them", Args: cli.MinArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, box := range args {
				if err := o.Call(cmd, "POST", api.BoxPath(box, "detach"), nil, cli.Silent); err != nil {
					return fmt.Errorf("%s: %w", box, err)
				}
			}
			return nil
		},
	}
}

// newBoxInstallCA is `gateway box install-ca`.
func newBoxInstallCA(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "install-ca BOX...", Short: "Make attached containers trust the CA of their box and proxy.upstream_ca_files", Args: cli.MinArgs(1),
		Long: `Adds the CA of the box and the roots of proxy.upstream_ca_files to the certificates of a running container of Docker or
` + "`gateway oci`" + `, as --install-ca of ` + "`gateway box attach`" + ` does. Call it after roots were added to the configuration.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, box := range args {
				if err := installCA(cmd, o, box); err != nil {
					return fmt.Errorf("%s: %w", box, err)
				}
			}
			return nil
		},
	}
}

func installCA(cmd *cobra.Command, o *cli.Options, name string) error {
	client, err := o.Client()
	if err != nil {
		return err
	}
	var box struct {
		ID       string
		Attached *api.Attached
	}
	if err := client.Get(cmd.Context(), api.BoxPath(name), &box); err != nil {
		return err
	}
	if !hasContainer(box.Attached) {
		return fmt.Errorf("it is not an attached container; launched boxes get new roots at their next start, and `gateway ca --box %s --bundle` prints them for others", name)
	}
	g, err := dockerGateway(o)
	if err != nil {
		return err
	}
	if box.Attached.Kind == api.AttachOCI {
		return oci.Gateway{Client: g.Client, Roots: g.Roots}.InstallCA(cmd.Context(), box.ID)
	}
	return g.InstallCA(cmd.Context(), box.ID, box.Attached.Container)
}

// hasContainer reports whether a box is a container whose certificates can be changed from the host.
func hasContainer(a *api.Attached) bool {
	return a != nil && (a.Container != "" || a.Kind == api.AttachOCI)
}
